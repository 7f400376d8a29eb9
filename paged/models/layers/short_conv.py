"""ShortConv: a short convolution between two gates, with its weights."""

from torch import Tensor

from pagedrun.paged.cache.cache_spec import StatePlace
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.causal_conv import CausalConv
from pagedrun.paged.models.network.recurrence.short_conv_spec import ShortConvSpec
from pagedrun.paged.models.weight_source import WeightSource


class ShortConv:
    """The last few tokens of a sequence are all that it knows. `place`: of its states."""

    def __init__(self, spec: ShortConvSpec, place: StatePlace, source: WeightSource) -> None:
        self._place = place
        self._inputs = spec.inputs.load(source)
        self._conv = CausalConv(spec.conv, source, activate=False)
        self.out = spec.out.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        return self._inputs.num_bytes + self._conv.num_bytes + self.out.num_bytes

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Bring the states up to date; return [num_tokens, hidden_size], what `out` takes."""
        assert batch.states is not None, "made without states"
        (state,) = cache.state(self._place)
        before, behind, x = self._inputs(x).chunk(3, dim=1)
        return behind * self._conv(before * x, state, batch.states)
