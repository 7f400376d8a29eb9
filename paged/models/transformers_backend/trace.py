"""Traces of Transformers models on the meta device: descriptions without weights.

The code of Transformers is run on a few tokens of meta tensors. `trace_paged` records the
attention that each layer requests from its interface: heads, scale, and the window of its mask. A
model with any other request cannot use paged KV memory; `trace_plain` then records the size of its
own cache.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, __version__
from transformers.pytorch_utils import Conv1D

from pagedrun.paged.models.modules.rotary import MAX_POSITIONS
from pagedrun.paged.models.network import AttentionHeads
from pagedrun.paged.models.transformers_backend.config_fields import (
    error_summary,
    quiet_transformers,
)
from pagedrun.paged.models.transformers_backend.hooks import TRACED, attach, is_experts, mask_of
from pagedrun.paged.models.transformers_backend.plain_model import (
    CACHE_NAMES,
    CachedForward,
    NoCache,
    num_cached,
)
from pagedrun.paged.models.transformers_backend.specs import (
    PlainSpec,
    TransformersAttention,
    TransformersSpec,
)
from pagedrun.paged.values.errors import ModelError


def trace_network(config: Any, origin: str, fields: str) -> TransformersSpec | PlainSpec:
    """Return the description of the model of a Transformers `config`.

    `origin` is the path of config.json, `fields` its visible part. Raises `ModelError` for a model
    that runs neither paged nor plain.
    """
    with quiet_transformers():
        try:
            return trace_paged(config, fields)
        except Unpaged as error:
            unpaged = str(error)
        try:
            return trace_plain(config, fields, unpaged)
        except NoCache:
            why = "it returns no cache from which a row could continue"
        except Exception as error:  # any error of its code on meta tensors
            why = f"its code cannot be traced without weights ({error_summary(error)})"
    raise ModelError(
        f"{origin}: model_type {config.model_type!r} cannot be run by Transformers' code "
        f"with paged memory: {unpaged}; nor with its own caches: {why}"
    )


_NUM_TOKENS = 4
# Arguments of attention that are not used; None is always accepted.
_IGNORED_ARGUMENTS = frozenset(
    {
        *("dropout", "position_ids", "use_cache", "is_causal", "cache_position"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "layer_idx"),
    }
)
_ARGUMENT_NAMES = {"position_bias": "position biases", "indices": "chosen keys"}
_OWN_ATTENTION = "its layers do not use the library's interface for attention"
_UNPAGED_ROPES = ("dynamic", "longrope")  # rope types that depend on the longest row of a step


class Unpaged(Exception):
    """The model needs something that the paged kernels do not compute."""


def trace_paged(config: Any, fields: str) -> TransformersSpec:
    """Return the attention layers of the model of a Transformers `config`, read from `fields`.

    Raises `Unpaged` for a model with layers that keep anything but keys and values, or that read
    them in another way than the paged kernels.
    """
    try:
        with torch.inference_mode():
            seen = _TracedModel(config)
            logits = seen.run()
    except Unpaged:
        raise
    except Exception as error:  # any error of its code on meta tensors
        why = f"its code cannot be traced without weights ({error_summary(error)})"
        if TRACED in str(error):  # it looks up its own class by that name
            why = _OWN_ATTENTION
        raise Unpaged(why) from error
    return TransformersSpec(
        computed_by=f"transformers {__version__}",
        fields=fields,
        layers=tuple(seen.layers),
        vocab_size=min(logits.shape[-1], seen.model.get_input_embeddings().num_embeddings),
        hidden_size=config.hidden_size,
        max_position_embeddings=config.max_position_embeddings,
        num_weights=sum(each.numel() for each in seen.model.parameters()),
        width=token_width(seen.model, config.hidden_size),
    )


class _TracedModel:
    """A model on the meta device, and the attention of its layers in execution order."""

    def __init__(self, config: Any) -> None:
        self._config = config
        with torch.device("meta"):
            self.model: Any = AutoModelForCausalLM.from_config(
                config,
                trust_remote_code=False,
                attn_implementation=TRACED,
                experts_implementation=TRACED,
            )
        self.model.eval()
        self.layers: list[TransformersAttention] = []
        self._names = {module: name for name, module in self.model.named_modules()}
        for module in self.model.modules():
            attach(module, self._experts if is_experts(module) else self._attend)

    def run(self) -> Tensor:
        """Return the logits of a few tokens, and fill `layers`."""
        self._refuse_what_steps_decide()
        ids = torch.zeros(1, _NUM_TOKENS, dtype=torch.long, device="meta")
        positions = torch.arange(_NUM_TOKENS, device="meta")[None]
        logits: Tensor = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=torch.ones_like(ids),
            use_cache=False,
        ).logits
        if not self.layers:
            raise Unpaged(_OWN_ATTENTION)
        wanted = self._config.num_hidden_layers
        if len(self.layers) != wanted:
            raise Unpaged(
                f"the library's interface for attention is called {len(self.layers)} times for "
                f"its {wanted} layers; each layer must call it once"
            )
        if self.model.get_decoder() is self.model:
            raise Unpaged("its layers and its head cannot be separated")
        if len({each.name for each in self.layers}) != wanted:
            raise Unpaged("a layer has more than one attention")
        if self._config.max_position_embeddings is None:
            raise Unpaged("its config.json does not state the context length")
        return logits

    def _refuse_what_steps_decide(self) -> None:
        if getattr(self.model, "_is_stateful", False):
            raise Unpaged("it has recurrent layers, which keep a state")
        for module in self.model.modules():
            kinds = getattr(module, "rope_type", None)
            for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
                if kind in _UNPAGED_ROPES:
                    raise Unpaged(f"its rotations ({kind}) depend on the longest row of a step")

    def _experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return torch.empty_like(x)

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor:
        name = self._names[module]
        asked = {key: each for key, each in kwargs.items() if each is not None}
        scale, softcap = asked.pop("scaling", None), asked.pop("softcap", None)
        sinks = asked.pop("s_aux", None)
        asked.pop("sliding_window", None)  # the mask says it
        if others := sorted(asked.keys() - _IGNORED_ARGUMENTS):
            names = ", ".join(_ARGUMENT_NAMES.get(each, each) for each in others)
            raise Unpaged(f"its attention takes {names}")
        _, num_heads, _, head_dim = query.shape
        _, num_kv_heads, _, value_dim = value.shape
        shapes = (1, num_heads, _NUM_TOKENS, head_dim), (1, num_kv_heads, _NUM_TOKENS, head_dim)
        if (query.shape, key.shape) != shapes or value.shape[2] != _NUM_TOKENS or head_dim % 2:
            raise Unpaged(f"its heads have the shapes {[*query.shape]} and {[*key.shape]}")
        if value_dim > head_dim:
            raise Unpaged(f"its values have {value_dim} numbers, its keys {head_dim}")
        if num_heads % num_kv_heads:
            raise Unpaged(f"{num_heads} query heads share {num_kv_heads} key heads")
        if sinks is not None and sinks.shape != (num_heads,):
            raise Unpaged("it does not have one sink per head")
        for number in (scale, softcap):
            if isinstance(number, Tensor):
                raise Unpaged("its scores are scaled by a tensor")
        self.layers.append(
            TransformersAttention(
                name,
                AttentionHeads(num_heads, num_kv_heads, head_dim, self._window(mask)),
                head_dim**-0.5 if scale is None else float(scale),
                None if softcap is None else float(softcap),
            )
        )
        return query.new_empty(1, _NUM_TOKENS, num_heads, value_dim)

    def _window(self, mask: Tensor | None) -> int | None:
        is_visible = mask_of(mask)
        if is_visible is None:
            raise Unpaged("its masks are built by its own code")
        try:
            return window_of(is_visible, self._config.max_position_embeddings or _NUM_TOKENS)
        except ValueError as error:
            raise Unpaged(f"its masks are not sliding windows: {error}") from error


# (row, head, query position, key position) -> key is visible; arguments broadcast.
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
MAX_LOOKED_AT = 2**17  # keys of one query


def window_of(is_visible: MaskFunction, num_positions: int) -> int | None:
    """Return the sliding window of a mask, None if each query sees all keys up to its own.

    The last of `num_positions` queries gives the width; a few others must agree. Raises
    `ValueError` for any other mask.
    """
    num_keys = min(num_positions, MAX_LOOKED_AT)
    width = int(_visible_keys(is_visible, num_keys - 1, num_keys).sum())
    keys = torch.arange(num_keys)
    borders = (0, 1, width - 1, width, width + 1, num_keys // 2, num_keys - 1)
    for query in sorted({each for each in borders if 0 <= each < num_keys}):
        expected = (keys <= query) & (keys > query - width)
        if not torch.equal(_visible_keys(is_visible, query, num_keys), expected):
            raise ValueError(
                f"the query at position {query} does not see exactly the keys before it"
            )
    return None if width == num_keys else width


def _visible_keys(is_visible: MaskFunction, query: int, num_keys: int) -> Tensor:
    zero = torch.tensor(0)
    return is_visible(zero, zero, torch.tensor(query), torch.arange(num_keys)).expand(num_keys)


_PLAIN_TOKENS = 8
# Names of the context length in config.json files.
_CONTEXTS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    *("max_sequence_length", "max_seq_length", "model_max_length"),
)
# Without one: for caches that grow with each token, and for others.
_CONTEXT, _CONTEXT_OF_STATES = 2048, 2**17


class _CacheSize(NamedTuple):
    """Name and size of a cache; see `PlainSpec`."""

    cache_name: str
    num_state_numbers: int
    num_token_numbers: int


def trace_plain(config: Any, fields: str, why: str) -> PlainSpec:
    """Return the cache sizes of the model of a Transformers `config`.

    `fields` is the visible part of config.json, `why` the reason against paged memory. Raises
    `NoCache` if the model returns no cache, and any error of its code if it has recurrent layers
    and cannot be traced.
    """
    with torch.device("meta"), torch.inference_mode():
        model: Any = AutoModelForCausalLM.from_config(
            config,
            trust_remote_code=False,
            attn_implementation="eager",
            experts_implementation=TRACED,
        )
        model.eval()
        for module in model.modules():
            if is_experts(module):
                attach(module, _experts)
        try:
            kept = _traced_cache(model)
        except NoCache:
            raise
        except Exception:  # any error of its code on meta tensors
            if getattr(model, "_is_stateful", False):
                raise
            kept = _assumed_cache(model, config)
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


def _traced_cache(model: Any) -> _CacheSize:
    """Return the size of the cache, measured on a few tokens."""
    forward = CachedForward(model)
    ids = torch.zeros(_PLAIN_TOKENS, dtype=torch.long)
    _, cache = forward(ids, 0, None, 1)
    sizes = []
    for position in (_PLAIN_TOKENS, _PLAIN_TOKENS + 1):
        _, cache = forward(ids[:1], position, cache, 1)
        sizes.append(num_cached(cache))
    if forward.cache_name is None or not sizes[1]:
        raise NoCache
    per_token = max(sizes[1] - sizes[0], 0)
    return _CacheSize(
        forward.cache_name, max(sizes[1] - per_token * (_PLAIN_TOKENS + 2), 0), per_token
    )


def _assumed_cache(model: Any, config: Any) -> _CacheSize:
    """Return an upper bound for attention layers that cannot be traced: keys and values as wide as
    the residual stream. The actual size is checked when the model is loaded."""
    takes = inspect.signature(model.forward).parameters
    if CACHE_NAMES[0] not in takes:
        raise NoCache
    return _CacheSize(CACHE_NAMES[0], 0, 2 * config.num_hidden_layers * config.hidden_size)


def _context(config: Any, *, grows: bool) -> int:
    """Return the maximum context of config.json, else that of small models, or a much longer one
    if the cache does not grow with tokens."""
    for name in _CONTEXTS:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_POSITIONS:
            return value
    return _CONTEXT if grows else _CONTEXT_OF_STATES


def _experts(module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(x)


def token_width(model: Any, hidden_size: int) -> int:
    """Return the elements of a token at the widest point, estimated from the widest product."""
    head = model.get_output_embeddings()
    widths = [
        module.weight.shape[0 if isinstance(module, nn.Linear) else 1]
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]
    return 3 * max(widths, default=hidden_size)
