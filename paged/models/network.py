"""Network: interface of model descriptions for planning, scheduling and reports.

Implemented by `DecoderSpec` and by the descriptions of models that Transformers computes. Layers
with the same heads and the same window form a KV group: they share block tables.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVLayerIndex, StateSpec
from pagedrun.paged.models.checkpoint.tensors import (
    NO_QUANTIZED,
    HeldCodes,
    StoredLinear,
    StoredTensors,
)


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Heads of a layer and their sliding window in tokens, None for full attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True, slots=True)
class KVLayers:
    """Layers with the same heads, by index."""

    heads: AttentionHeads
    layers: tuple[int, ...]

    def spec(self, dtype: str) -> KVCacheSpec:
        """Return the cache layout of the group in `dtype`, a name of torch."""
        heads = self.heads
        return KVCacheSpec(
            len(self.layers), heads.num_kv_heads, heads.head_dim, dtype, heads.window
        )


class Network(Protocol):
    """Description of a model, a value whose `repr` determines its results for given weights."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the embedding and the logits."""
        ...

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest context, in tokens."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Sliding window of each layer, in tokens; None for full attention."""
        ...

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """Heads of each layer with attention in pagedrun's kernels."""
        ...

    @property
    def kv_groups(self) -> tuple[KVLayers, ...]:
        """KV groups: layers that share block tables."""
        ...

    @property
    def is_capturable(self) -> bool:
        """True if decode steps can be recorded as CUDA graphs."""
        ...

    def arithmetic(self) -> dict[str, str]:
        """Return other sources of its last bits than pagedrun's kernels, by name."""
        ...

    @property
    def num_weights(self) -> int:
        """Number of values of all weights, whatever their format; a tied head counts once."""
        ...

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights in a dtype of `dtype_bytes` a number."""
        ...

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights in memory; `packs`: the backend has its own layout.

        `codes`: weights that stay quantized.
        """
        ...

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the linear layers of a checkpoint that has the tensors `stored`, if known."""
        ...

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the peak bytes of the activations of a step.

        dtype_bytes: of a number in the model's dtype. num_logits: tokens with logits.
        """
        ...

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the cache layout of each KV group in `dtype`, a name of torch."""
        ...

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return the state of a sequence in each recurrent layer, in a model of `dtype`."""
        ...

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return the bytes of a token that layers read, by their window.

        specs: one of each KV group.
        """
        ...


def kv_groups(attentions: Mapping[int, AttentionHeads]) -> tuple[KVLayers, ...]:
    """Return the KV groups of layers with their own keys and values.

    attentions: by layer index. The first group has no window, since plans name its blocks; it is
    empty if all layers have windows.
    """
    alike: dict[AttentionHeads, list[int]] = {}
    for layer, heads in attentions.items():
        alike.setdefault(heads, []).append(layer)
    groups = [KVLayers(heads, tuple(layers)) for heads, layers in alike.items()]
    full = [group for group in groups if group.heads.window is None]
    windowed = [group for group in groups if group.heads.window is not None]
    names = KVLayers(replace(attentions[min(attentions)], window=None), ())
    return (*(full or [names]), *windowed)


def kv_indices(groups: Sequence[KVLayers]) -> dict[int, KVLayerIndex]:
    """Return the index of the keys and values of each layer in the cache."""
    return {
        layer: KVLayerIndex(number, index)
        for number, group in enumerate(groups)
        for index, layer in enumerate(group.layers)
    }


def bytes_read(
    indices: Iterable[KVLayerIndex], specs: Sequence[KVCacheSpec]
) -> Counter[int | None]:
    """Return the bytes of a token that layers at `indices` read, by their window."""
    found: Counter[int | None] = Counter()
    for index in indices:
        found[specs[index.group].window] += specs[index.group].bytes_per_layer
    return found
