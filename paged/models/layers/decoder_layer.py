"""DecoderLayer: a mixer and feed-forward, each between the norms that a family has."""

import torch
from torch import Tensor

from pagedrun.paged.cache.cache_spec import KVPlace, StatePlace
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.ffn import load_ffn
from pagedrun.paged.models.layers.layer_inputs import InputGate
from pagedrun.paged.models.layers.mixer import load_mixer
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.layers.rotary_tables import RotaryTables
from pagedrun.paged.models.layers.side_mixture import SideMixture
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.weight_source import WeightSource


class DecoderLayer:
    """Both outputs are added to the residual stream, the second by whoever comes next."""

    def __init__(
        self,
        spec: DecoderLayerSpec,
        place: KVPlace | StatePlace,
        source: WeightSource,
        tables: RotaryTables,
    ) -> None:
        self._mixer = load_mixer(spec.mixer, place, source, tables)
        self._ffn = load_ffn(spec.ffn, source)
        multiplier = spec.residual_multiplier
        self._around_mixer = _Residual(
            spec.attention_norm, spec.attention_out_norm, multiplier, source
        )
        self._around_ffn = _Residual(spec.ffn_norm, spec.ffn_out_norm, multiplier, source)
        beside, gate, scale = spec.side_mixture, spec.input_gate, spec.scale
        self._side_mixture = None if beside is None else SideMixture(beside, source)
        self._input_gate = None if gate is None else InputGate(gate, source)
        self._scale = None if scale is None else source.tensor(scale.weight, torch.float32)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        parts = (self._around_mixer, self._mixer, self._around_ffn, self._ffn)
        others = (self._side_mixture, self._input_gate)
        scale = 0 if self._scale is None else self._scale.nbytes
        return scale + sum(part.num_bytes for part in (*parts, *others) if part is not None)

    def __call__(
        self,
        x: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        keep: Tensor | None,
        inputs: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        """See `Layer`."""
        mixed = self._mixer(self._around_mixer.enter(x, residual), batch, cache)
        if keep is not None:
            mixed, residual = mixed[keep], residual[keep]
            inputs = None if inputs is None else inputs[keep]
            if not len(keep):
                return mixed.new_empty(residual.shape), residual
        x = self._around_mixer.leave(self._mixer.out(mixed))
        x = self._ffn(self._around_ffn.enter(x, residual))
        if self._side_mixture is not None:
            x = self._side_mixture(x, residual)
        x = self._around_ffn.leave(x)
        if self._input_gate is not None:
            assert inputs is not None, "a network whose layers have no inputs"
            residual += x
            x = self._input_gate(residual, inputs)
        if self._scale is None:
            return x, residual
        residual += x
        residual *= self._scale
        return None, residual


class _Residual:
    """How either part reads the residual stream, and what is added to it."""

    def __init__(
        self,
        norm: NormSpec | None,
        out_norm: NormSpec | None,
        multiplier: float,
        source: WeightSource,
    ) -> None:
        self._norm = None if norm is None else Norm(norm, source)
        self._out_norm = None if out_norm is None else Norm(out_norm, source)
        self._multiplier = multiplier
        self._dtype = source.dtype

    @property
    def num_bytes(self) -> int:
        return sum(norm.num_bytes for norm in (self._norm, self._out_norm) if norm is not None)

    def enter(self, x: Tensor | None, residual: Tensor) -> Tensor:
        """Add x to the residual stream, in place; return what is read of it."""
        if self._norm is not None:
            return self._norm(x, residual)
        if x is not None:
            residual += x
        return residual.to(self._dtype)

    def leave(self, x: Tensor) -> Tensor:
        """Return what is to be added to the residual stream."""
        if self._out_norm is not None:
            x = self._out_norm.alone(x)
        return x if self._multiplier == 1.0 else x * self._multiplier
