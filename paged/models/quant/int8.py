"""INT8 linear layers: weights and activations are quantized, products are exact integers.

`Int8` quantizes plain weights at load, a scale for each output; `Int8Activations` takes the
codes and scales of a compressed-tensors checkpoint (W8A8). Activations are quantized token by
token.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.checkpoint.tensor_names import HEAD
from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    HeldCodes,
    Parameter,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import LinearSpec
from pagedrun.paged.models.quant.fp8 import ScaledCodes
from pagedrun.paged.models.quant.linear_methods import Dense, Unpacked, check_stray_bias

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.ops import Linear
    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

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
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
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


_CODES = ScaledCodes("I8")
_UNPACKED = Unpacked((_CODES,))


@dataclass(frozen=True, slots=True)
class Int8Activations:
    """Codes are computed with as they are, inputs are rounded to int8 token by token.

    Layers of which a part is stored in plain numbers are computed with in these.
    `has_plain_head` is what config.json says: bytes are counted by it before weights are read.
    """

    has_plain_head: bool

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors of each part's matrix, and its bias."""
        return _UNPACKED.parameters(linear, stored)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of codes and scales, or of plain matrices, and of biases."""
        if self.has_plain_head and linear.parts[0].name == HEAD:
            return _DENSE.num_bytes(linear, dtype_bytes)
        return int8_bytes(linear, dtype_bytes)

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one product of the backend's."""
        size = linear.in_features
        found = [_CODES.parameters(part, size, source.stored) for part in linear.parts]
        if any(each is None for each in found) or size > MAX_IN_FEATURES:
            return _UNPACKED.load(linear, source)
        for part in linear.parts:
            check_stray_bias(part, linear, source)
        parts = [_CODES.codes(part, size, source) for part in linear.parts]
        codes, scales = (source.joined(each) for each in zip(*parts, strict=True))
        bias = source.stacked(_DENSE.biases(linear)) if linear.has_bias else None
        return source.kernels.pack_int8(codes, scales, bias)

    def matrix_bytes(self, linear: LinearSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of one expert's matrix, in few bits where it can be held so."""
        return _UNPACKED.held_bytes(linear, dtype_bytes, codes)

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the matrix of an expert, whose inputs are not rounded."""
        return _UNPACKED.matrix(linear, source)
