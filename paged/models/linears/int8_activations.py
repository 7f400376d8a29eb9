"""Int8Activations: int8 weights of a checkpoint that asks for int8 activations as well."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.linears.dense import Dense
from pagedrun.paged.models.linears.int8 import MAX_IN_FEATURES, int8_bytes
from pagedrun.paged.models.linears.scaled_codes import ScaledCodes
from pagedrun.paged.models.linears.unpacked import Unpacked, check_stray_bias
from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.checkpoint.tensor_names import HEAD
from pagedrun.paged.models.network.linear_spec import LinearSpec

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.linear import Linear
    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource

_CODES = ScaledCodes("I8")
_UNPACKED = Unpacked((_CODES,))
_DENSE = Dense()


@dataclass(frozen=True, slots=True)
class Int8Activations:
    """Codes are computed with as they are, inputs are rounded to int8 token by token.

    Layers of which a part is stored in plain numbers are computed with in these.
    `has_plain_head` is what config.json says: bytes are counted by it before weights are read.
    """

    has_plain_head: bool

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NOTHING_STORED
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
