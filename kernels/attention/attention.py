"""Attention: the attention of one step, as a backend has prepared it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.prefix_groups import PrefixGroups, PrefixResult
from pagedrun.kernels.attention.softmax import Softmax


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What is the same in all layers: heads, and the dtypes of queries and cache.

    block_size: tokens in a block, 0 where that is not known. It decides no bytes.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    block_size: int = 0


class Attention(Protocol):
    """Attention over the `AttentionInputs` that it was prepared from, in one layer after the other.

    q: [num_tokens, num_heads, head_dim], of the step's prefill tokens or of its decode tokens.
    `layer` holds their own keys and values already. `window`: how many tokens a query sees, None
    for all before it.
    The ops are defined in `pagedrun.kernels.reference`.
    """

    def prefill(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
    ) -> Tensor:
        """Attend from the chunks of prompt tokens; returns the shape and dtype of `q`."""
        ...

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Attend from generated tokens over the partitions that they read together.

        Returns what `decode` goes on from, None where no rows read together. There is no window:
        each row's would begin elsewhere.
        """
        ...

    def decode(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
        prefix: PrefixResult | None = None,
    ) -> Tensor:
        """Attend from generated tokens, each over what is not in `prefix`; as `prefill` returns."""
        ...

    def regroup(self, groups: PrefixGroups) -> None:
        """Replace who reads which shared partitions together, tensors on the host.

        What was prepared with `room` holds it in the same memory, where a captured launch finds it.
        """
        ...
