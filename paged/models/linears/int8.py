"""Int8: plain matrices that are rounded to int8 while they are read, and computed with as such."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.linears.dense import Dense
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.linear import Linear
    from pagedrun.paged.models.weight_source import WeightSource

# Sums of so many products fit 32 bits.
MAX_IN_FEATURES = 2**16
SCALE_BYTES = 4
_DENSE = Dense()


@dataclass(frozen=True, slots=True)
class Int8:
    """A code for each weight, a scale for each output; inputs are rounded token by token.

    A checkpoint has for it what it has for plain matrices.
    """

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return each part's matrix, and its bias."""
        return _DENSE.parameters(linear)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of codes and scales, and of biases in the model's dtype."""
        return int8_bytes(linear, dtype_bytes)

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one product of the backend's."""
        parts = [
            source.quantized(each.name, source.tensor(each)) for each in _DENSE.weights(linear)
        ]
        codes, scales = (source.joined(each) for each in zip(*parts, strict=True))
        bias = source.stacked(_DENSE.biases(linear)) if linear.has_bias else None
        return source.kernels.pack_int8(codes, scales, bias)

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "Tensor":
        """Return the plain matrix of an expert: those are not rounded."""
        return _DENSE.matrix(linear, source)


def int8_bytes(linear: LinearSpec, dtype_bytes: int) -> int:
    """Return the bytes of a layer whose weights are held in int8."""
    bias = dtype_bytes if linear.has_bias else 0
    return linear.out_features * (linear.in_features + SCALE_BYTES + bias)
