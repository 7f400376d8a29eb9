"""Network: the description of a model that planning, scheduling and reports use.

Implemented by `DecoderSpec` and by the descriptions of models that Transformers computes. Layers
with the same heads and the same window form a KV group: they share block tables.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace, StateSpec
from pagedrun.paged.models.checkpoint.tensors import NO_QUANTIZED, HeldCodes


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The heads of a layer, and the window in which they see keys: None for full attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


class Network(Protocol):
    """A value; its `repr` says everything that what it computes depends on but the weights."""

    @property
    def vocab_size(self) -> int:
        """Tokens in the embedding, and in the logits."""
        ...

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """The longest context, in tokens."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window, in tokens; None for full attention."""
        ...

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """The heads of each layer whose attention pagedrun's kernels compute."""
        ...

    @property
    def is_capturable(self) -> bool:
        """Whether a step that only decodes can be recorded on a GPU and replayed."""
        ...

    def arithmetic(self) -> dict[str, str]:
        """Return what its last bits depend on besides pagedrun's kernels, by name."""
        ...

    @property
    def num_weights(self) -> int:
        """How many numbers all weights are, however they are held; a tied head's count once."""
        ...

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights, in a model whose numbers have `dtype_bytes`."""
        ...

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights where a backend `packs` them in a layout of its own.

        `codes`: which weights of few bits stay such.
        """
        ...

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network.

        dtype_bytes: of one number of the model's dtype. num_logits: tokens that logits are wanted
        of.
        """
        ...

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the groups of layers whose keys and values are stored in `dtype`, torch's name."""
        ...

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return what each recurrent layer keeps of a sequence, in a model of `dtype`, torch's
        name."""
        ...

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return for each window, or None, the bytes that all layers with it read of a token.

        specs: of the groups of layers.
        """
        ...


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers, by their index, whose heads are alike."""

    heads: AttentionHeads
    layers: tuple[int, ...]

    def spec(self, dtype: str) -> KVCacheSpec:
        """Return what they keep of each token, in `dtype`, torch's name."""
        heads = self.heads
        return KVCacheSpec(
            len(self.layers), heads.num_kv_heads, heads.head_dim, dtype, heads.window
        )


def kv_groups(attentions: Mapping[int, AttentionHeads]) -> tuple[KVGroup, ...]:
    """Return the groups of layers that keep keys and values of their own, by the layers' index.

    The first group has no window, since its blocks are those that a plan knows by name; it has no
    layers where all of them have windows.
    """
    alike: dict[AttentionHeads, list[int]] = {}
    for layer, heads in attentions.items():
        alike.setdefault(heads, []).append(layer)
    groups = [KVGroup(heads, tuple(layers)) for heads, layers in alike.items()]
    full = [group for group in groups if group.heads.window is None]
    windowed = [group for group in groups if group.heads.window is not None]
    names = KVGroup(replace(attentions[min(attentions)], window=None), ())
    return (*(full or [names]), *windowed)


def kv_places(groups: Sequence[KVGroup]) -> dict[int, KVPlace]:
    """Return where each layer of some groups has its keys and values."""
    return {
        layer: KVPlace(index, place)
        for index, group in enumerate(groups)
        for place, layer in enumerate(group.layers)
    }


def bytes_read(places: Iterable[KVPlace], specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
    """Return for each window, or None, the bytes that layers reading at `places` read of a token.

    specs: of the groups of layers.
    """
    found: Counter[int | None] = Counter()
    for place in places:
        found[specs[place.group].window] += specs[place.group].bytes_per_layer
    return found
