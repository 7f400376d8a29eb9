"""Mixer: what lets the tokens of a sequence see each other, with its weights."""

from typing import Protocol

from torch import Tensor

from pagedrun.kernels.linear import Linear
from pagedrun.paged.cache.cache_spec import KVPlace, StatePlace
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.attention import SelfAttention
from pagedrun.paged.models.layers.delta_net import DeltaNet
from pagedrun.paged.models.layers.rotary_tables import RotaryTables
from pagedrun.paged.models.layers.short_conv import ShortConv
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.recurrence.delta_net_spec import DeltaNetSpec
from pagedrun.paged.models.network.recurrence.recurrent_spec import RecurrentSpec
from pagedrun.paged.models.network.recurrence.short_conv_spec import ShortConvSpec
from pagedrun.paged.models.weight_source import WeightSource


class Mixer(Protocol):
    """Attention, or a recurrence."""

    @property
    def out(self) -> Linear:
        """Maps its result, of the tokens that go on, back to [num_tokens, hidden_size]."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        ...

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Write what the cache keeps of all tokens; return what `out` takes, of each.

        x: [num_tokens, hidden_size].
        """
        ...


def load_mixer(
    spec: AttentionSpec | RecurrentSpec,
    place: KVPlace | StatePlace,
    source: WeightSource,
    tables: RotaryTables,
) -> Mixer:
    """Return what a description describes, with its weights; `TypeError` for an unknown kind."""
    if isinstance(spec, AttentionSpec) and isinstance(place, KVPlace):
        return SelfAttention(spec, place, source, tables)
    if isinstance(spec, ShortConvSpec) and isinstance(place, StatePlace):
        return ShortConv(spec, place, source)
    if isinstance(spec, DeltaNetSpec) and isinstance(place, StatePlace):
        return DeltaNet(spec, place, source)
    raise TypeError(f"no layer computes {type(spec).__name__}")
