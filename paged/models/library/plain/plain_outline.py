"""What a model of the library keeps of a sequence, seen by running its code without numbers."""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, __version__

from pagedrun.paged.models.library.interfaces import OUTLINED, attach
from pagedrun.paged.models.library.plain.cached_forward import CACHE_NAMES, CachedForward, NoCache
from pagedrun.paged.models.library.plain.kept_numbers import num_kept
from pagedrun.paged.models.library.plain.plain_spec import PlainSpec
from pagedrun.paged.models.library.row_experts import is_experts
from pagedrun.paged.models.library.token_width import token_width
from pagedrun.paged.models.rope_config import MAX_POSITIONS

_PROMPT = 8
# How long a context may be, by the names that config.json files have for it.
_CONTEXTS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    *("max_sequence_length", "max_seq_length", "model_max_length"),
)
# Where none says it: of what grows with each token, and of what does not.
_CONTEXT, _CONTEXT_OF_STATES = 2048, 2**17


class _Kept(NamedTuple):
    """What a cache is called and holds; see `PlainSpec`."""

    cache_name: str
    num_state_numbers: int
    num_token_numbers: int


def plain_outline(config: Any, fields: str, why: str) -> PlainSpec:
    """Return what the model of a library's `config` keeps of a sequence.

    `fields` are those that were read, `why` says why it does not run over paged memory. Raises
    `NoCache` if it has nothing to go on from, and whatever its code raises if it has recurrent
    layers and cannot be followed without numbers.
    """
    with torch.device("meta"), torch.inference_mode():
        model: Any = AutoModelForCausalLM.from_config(
            config,
            trust_remote_code=False,
            attn_implementation="eager",
            experts_implementation=OUTLINED,
        )
        model.eval()
        for module in model.modules():
            if is_experts(module):
                attach(module, _experts)
        try:
            kept = _seen(model)
        except NoCache:
            raise
        except Exception:  # whatever its code raises where it looks at numbers
            if getattr(model, "_is_stateful", False):
                raise
            kept = _assumed(model, config)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    num_tokens = table.num_embeddings
    num_heads = getattr(config, "num_attention_heads", None)
    return PlainSpec(
        computed_by=f"transformers {__version__}",
        fields=fields,
        why=why,
        **kept._asdict(),
        num_layers=config.num_hidden_layers,
        vocab_size=num_tokens if head is None else min(num_tokens, head.weight.shape[0]),
        hidden_size=config.hidden_size,
        max_position_embeddings=_context(config, grows=kept.num_token_numbers > 0),
        num_weights=sum(each.numel() for each in model.parameters()),
        num_heads=num_heads if kept.num_token_numbers and isinstance(num_heads, int) else 0,
        width=token_width(model, config.hidden_size),
    )


def _seen(model: Any) -> _Kept:
    """Return what the cache of a few tokens holds."""
    forward = CachedForward(model)
    ids = torch.zeros(_PROMPT, dtype=torch.long)
    _, cache = forward(ids, 0, None, 1)
    sizes = []
    for position in (_PROMPT, _PROMPT + 1):
        _, cache = forward(ids[:1], position, cache, 1)
        sizes.append(num_kept(cache))
    if forward.cache_name is None or not sizes[1]:
        raise NoCache
    per_token = max(sizes[1] - sizes[0], 0)
    return _Kept(forward.cache_name, max(sizes[1] - per_token * (_PROMPT + 2), 0), per_token)


def _assumed(model: Any, config: Any) -> _Kept:
    """Return what layers of attention keep whose code cannot be followed: keys and values as wide
    as the residual stream. What they do keep is looked at when the model is loaded."""
    takes = inspect.signature(model.forward).parameters
    if CACHE_NAMES[0] not in takes:
        raise NoCache
    return _Kept(CACHE_NAMES[0], 0, 2 * config.num_hidden_layers * config.hidden_size)


def _context(config: Any, *, grows: bool) -> int:
    """Return the longest context: what config.json says; where it does not, what small models were
    trained with, or much more where a longer one takes no more memory."""
    for name in _CONTEXTS:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_POSITIONS:
            return value
    return _CONTEXT if grows else _CONTEXT_OF_STATES


def _experts(module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(x)
