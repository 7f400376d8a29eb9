"""INT8 linear layers: quantized weights and activations, exact integer products.

`Int8` quantizes plain weights at load, with a scale per output; `Int8Activations` takes codes and
scales of a compressed-tensors checkpoint (W8A8). Activations are quantized token by token.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.checkpoint.tensors import (
    HEAD,
    NO_TENSORS,
    HeldCodes,
    Parameter,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import LinearMethod, LinearSpec
from pagedrun.paged.models.quant.fp8 import ScaledWeights
from pagedrun.paged.models.quant.linear_methods import Dense, QuantizedWeights, check_stray_bias

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.ops import Linear
    from pagedrun.kernels.quantized_form import CodeForm
    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

# Sums of this many products fit 32 bits.
MAX_IN_FEATURES = 2**16
SCALE_BYTES = SUM_BYTES = 4  # of an output: its scale, and the sum of its codes
_DENSE = Dense()


@dataclass(frozen=True, slots=True)
class Int8(LinearMethod):
    """INT8 weights of a plain checkpoint: a code per weight, a scale per output."""

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the matrix and the bias of each part."""
        return _DENSE.parameters(linear)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of codes, scales and their sums, and of biases in the model's dtype."""
        return int8_bytes(linear, dtype_bytes) + SUM_BYTES * linear.out_features

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one product of the backend's."""
        parts = [
            source.quantized(each.name, source.tensor(each)) for each in _DENSE.weights(linear)
        ]
        return _pack(linear, parts, source, shifts=True)

    def has_int8_inputs(self, linear: LinearSpec, stored: StoredTensors) -> bool:
        """Return True."""
        return True

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "Tensor":
        """Return the plain matrix of an expert; experts are not quantized."""
        return _DENSE.matrix(linear, source)


def int8_bytes(linear: LinearSpec, dtype_bytes: int) -> int:
    """Return the bytes of a layer with int8 weights."""
    bias = dtype_bytes if linear.has_bias else 0
    return linear.out_features * (linear.in_features + SCALE_BYTES + bias)


def _pack(
    linear: LinearSpec,
    parts: "list[tuple[Tensor, Tensor]]",
    source: "WeightSource",
    *,
    shifts: bool,
) -> "Linear":
    """Return one product of the codes and scales of each part; shifts: of its inputs."""
    codes, scales = (source.joined(each) for each in zip(*parts, strict=True))
    bias = source.stacked(_DENSE.biases(linear)) if linear.has_bias else None
    return source.kernels.pack_int8(codes, scales, bias, shifts=shifts)


_CODES = ScaledWeights("I8")
_UNPACKED = QuantizedWeights((_CODES,))


@dataclass(frozen=True, slots=True)
class Int8Activations(LinearMethod):
    """INT8 weights of a quantized checkpoint, with int8 activations.

    Layers with a part that is stored plain compute in the model's dtype. `has_plain_head` comes
    from config.json and is used for byte counts before weights are read.
    """

    has_plain_head: bool

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors of the matrix of each part, and its bias."""
        return _UNPACKED.parameters(linear, stored)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of codes and scales, or of plain matrices, and of biases."""
        if self.has_plain_head and linear.parts[0].name == HEAD:
            return _DENSE.num_bytes(linear, dtype_bytes)
        return int8_bytes(linear, dtype_bytes)

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one product of the backend's."""
        if not self.has_int8_inputs(linear, source.stored):
            return _UNPACKED.load(linear, source)
        for part in linear.parts:
            check_stray_bias(part, linear, source)
        parts = [_CODES.codes(part, linear.in_features, source) for part in linear.parts]
        return _pack(linear, parts, source, shifts=False)

    def has_int8_inputs(self, linear: LinearSpec, stored: StoredTensors) -> bool:
        """Return True if no part is stored plain, and sums fit."""
        size = linear.in_features
        found = [_CODES.parameters(part, size, stored) for part in linear.parts]
        return size <= MAX_IN_FEATURES and all(each is not None for each in found)

    def forms(self, linear: LinearSpec, stored: StoredTensors) -> "tuple[CodeForm | None, ...]":
        """Return the form of each part of a layer without int8 inputs, or of an expert."""
        return _UNPACKED.forms(linear, stored)

    def matrix_bytes(self, linear: LinearSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of one expert's matrix, quantized if its kernels allow."""
        return _UNPACKED.held_bytes(linear, dtype_bytes, codes)

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the matrix of an expert; its inputs are not quantized."""
        return _UNPACKED.matrix(linear, source)
