"""Which layers of a network share block tables, whatever else they are."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The heads of a layer, and the window in which they see keys: None for full attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


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
