"""RMS norms and layer norms with their weights."""

from torch import Tensor

from pagedrun.paged.models.checkpoint.weight_source import WeightSource, num_bytes
from pagedrun.paged.models.modules.norm import AnyNormSpec, LayerNormSpec, NormSpec


class Norm:
    """RMS norm of rows."""

    def __init__(self, spec: NormSpec, source: WeightSource) -> None:
        weight = source.tensor(spec.weight)
        self.weight = weight + spec.offset if spec.offset else weight
        self._dtype = source.dtype
        self._eps = spec.eps
        self._kernels = source.kernels

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.nbytes

    def __call__(self, x: Tensor | None, residual: Tensor) -> Tensor:
        """Add x to the residual stream in place and return the normalized sum.

        x: [num_tokens, size] in the model's dtype, or None. residual: [num_tokens, size] float32.
        Returns the shape of residual in the model's dtype.
        """
        if x is None:
            return self.normalize(residual)
        return self._kernels.add_rms_norm(x, residual, self.weight, self._eps)

    def normalize(self, x: Tensor) -> Tensor:
        """Return x [num_tokens, size] normalized, in the model's dtype."""
        return self._kernels.rms_norm(x, self.weight, self._eps, self._dtype)


class LayerNorm:
    """Layer norm of rows."""

    def __init__(self, spec: LayerNormSpec, source: WeightSource) -> None:
        self._weight = source.tensor(spec.weight)
        self._bias = None if spec.bias is None else source.tensor(spec.bias)
        self._dtype = source.dtype
        self._eps = spec.eps
        self._kernels = source.kernels

    @property
    def num_bytes(self) -> int:
        """Bytes of weight and bias."""
        return num_bytes(self._weight, self._bias)

    def __call__(self, x: Tensor | None, residual: Tensor) -> Tensor:
        """Add x to the residual stream in place and return the normalized sum; see `Norm`."""
        if x is None:
            return self.normalize(residual)
        return self._kernels.add_layer_norm(x, residual, self._weight, self._bias, self._eps)

    def normalize(self, x: Tensor) -> Tensor:
        """Return x [num_tokens, size] normalized, in the model's dtype."""
        return self._kernels.layer_norm(x, self._weight, self._bias, self._eps, self._dtype)


def load_norm(spec: AnyNormSpec, source: WeightSource) -> Norm | LayerNorm:
    """Return the norm of a description with its weights."""
    return Norm(spec, source) if isinstance(spec, NormSpec) else LayerNorm(spec, source)
