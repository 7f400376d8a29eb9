"""Where the library lets others compute attention and experts: what it calls there.

Its registries are the library's, and global. What is registered has no state: it calls what was
put on the module itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

PAGED = "pagedrun"
# The same without weights: masks are asked for, to see which keys they leave open.
OUTLINED = "pagedrun-outline"
_ON_MODULE = "_pagedrun"

# (module, query, key, value, mask, the rest) -> [1, num_tokens, num_heads, head_dim]
Attend = Callable[[Any, Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]], Tensor]
# (module, hidden states, experts of each token, their weights) -> hidden states
RunExperts = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def attach(module: nn.Module, call: Attend | RunExperts) -> None:
    """Let `call` compute what the module asks its interface for."""
    setattr(module, _ON_MODULE, call)


def mask_of(mask: Tensor | None) -> Any:
    """Return the function that a mask was asked for with, None if it is no mask of ours."""
    return getattr(mask, _ON_MODULE, None)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    call: Attend = getattr(module, _ON_MODULE)
    return call(module, query, key, value, attention_mask, kwargs), None


def _run_experts(module: nn.Module, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    call: RunExperts = getattr(module, _ON_MODULE)
    return call(module, x, chosen, weights)


def _outlined_mask(*, q_length: int, kv_length: int, mask_function: Any, **_: Any) -> Tensor:
    mask = torch.empty(1, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    setattr(mask, _ON_MODULE, mask_function)
    return mask


for _name in (PAGED, OUTLINED):
    AttentionInterface.register(_name, _attend)
    ExpertsInterface.register(_name, _run_experts)
# None for PAGED: without one the library makes no masks.
AttentionMaskInterface.register(OUTLINED, _outlined_mask)
