"""Recurrent layers with weights: short convolutions and Gated DeltaNets."""

import torch
from torch import Tensor

from pagedrun.kernels.op_values import StateInputs
from pagedrun.paged.cache.cache_spec import StateLayerIndex
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.checkpoint.weight_source import WeightSource, num_bytes
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.models.modules.norm_layer import Norm
from pagedrun.paged.models.modules.recurrence import ConvSpec, DeltaNetSpec, ShortConvSpec


class ShortConv:
    """Short convolution with weights; `index` is the index of its states in the cache."""

    def __init__(self, spec: ShortConvSpec, index: StateLayerIndex, source: WeightSource) -> None:
        self._index = index
        self._inputs = spec.inputs.load(source)
        self._conv = CausalConv(spec.conv, source, activate=False)
        self.out = spec.out.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._inputs, self._conv, self.out)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Update the states; return the input of `out`, [num_tokens, hidden_size]."""
        assert batch.states is not None, "a batch without states"
        (state,) = cache.state(self._index)
        before, behind, x = self._inputs(x).chunk(3, dim=1)
        return behind * self._conv(before * x, state, batch.states)


class DeltaNet:
    """Gated DeltaNet with weights; `index` is the index of its states in the cache."""

    def __init__(self, spec: DeltaNetSpec, index: StateLayerIndex, source: WeightSource) -> None:
        self._spec = spec
        self._index = index
        self._kernels = source.kernels
        self._inputs = spec.inputs.load(source)
        self._conv = CausalConv(spec.conv, source, activate=True)
        self._a_log = source.tensor(spec.a_log)
        self._dt_bias = source.tensor(spec.dt_bias)
        self._norm = Norm(spec.norm, source)
        self.out = spec.out.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        parts = (self._inputs, self._conv, self._norm, self.out)
        return num_bytes(*parts, self._a_log, self._dt_bias)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Update the states; return the input of `out`, [num_tokens, num_heads * value_dim]."""
        assert batch.states is not None, "a batch without states"
        spec, kernels = self._spec, self._kernels
        conv, matrices = cache.state(self._index)
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


class CausalConv:
    """Causal convolution with weights, followed by SiLU if `activate`."""

    def __init__(self, spec: ConvSpec, source: WeightSource, *, activate: bool) -> None:
        self._kernels = source.kernels
        self._weight = source.tensor(spec.weight).squeeze(1)
        self._bias = None if spec.bias is None else source.tensor(spec.bias)
        self._activate = activate

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._weight, self._bias)

    def __call__(self, x: Tensor, state: Tensor, inputs: StateInputs) -> Tensor:
        """Update the states; return the shape of x, [num_tokens, num_channels]."""
        return self._kernels.causal_conv(x, self._weight, self._bias, state, inputs, self._activate)
