"""DeltaNet: a Gated DeltaNet with its weights."""

import torch
from torch import Tensor

from pagedrun.paged.cache.cache_spec import StatePlace
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.causal_conv import CausalConv
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.network.recurrence.delta_net_spec import DeltaNetSpec
from pagedrun.paged.models.weight_source import WeightSource


class DeltaNet:
    """Keeps of a sequence what its keys say of its values, a matrix a head. `place`: of these."""

    def __init__(self, spec: DeltaNetSpec, place: StatePlace, source: WeightSource) -> None:
        self._spec = spec
        self._place = place
        self._kernels = source.kernels
        self._inputs = spec.inputs.load(source)
        self._conv = CausalConv(spec.conv, source, activate=True)
        self._a_log = source.tensor(spec.decay.a_log, torch.float32)
        self._dt_bias = source.tensor(spec.decay.dt_bias, torch.float32)
        self._norm = Norm(spec.norm, source)
        self.out = spec.out.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        parts = (self._inputs, self._conv, self._norm, self.out)
        decay = self._a_log.nbytes + self._dt_bias.nbytes
        return sum(part.num_bytes for part in parts) + decay

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Bring the states up to date; return [num_tokens, num_heads * value_dim] for `out`."""
        assert batch.states is not None, "made without states"
        spec, kernels = self._spec, self._kernels
        conv, matrices = cache.state(self._place)
        sizes = [spec.conv.num_channels, spec.num_values, 2 * spec.num_heads]
        qkv, opening, gates = torch.split(self._inputs(x), sizes, dim=1)
        results = kernels.gated_delta_rule(
            self._conv(qkv, conv, batch.states),
            gates,
            self._a_log,
            self._dt_bias,
            matrices,
            batch.states,
        )
        return kernels.gated_rms_norm(results, opening, self._norm.weight, spec.norm.eps)
