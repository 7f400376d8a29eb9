"""GgufBlocks: matrices as GGUF files have them, in blocks with scales of their own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.files.gguf.block_type import PACKED_TYPES
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.unpacked import Unpacked
from pagedrun.paged.models.network.linear_spec import Projection
from pagedrun.paged.models.network.parameter import Parameter, Role
from pagedrun.paged.models.network.stored_tensors import StoredTensors

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.paged.models.weight_source import WeightSource


def gguf(quantization: JsonObject) -> Unpacked:
    """Return the method of a GGUF file, each of whose tensors says how it is stored."""
    return Unpacked((GgufBlocks(),))


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """`weight` [out_features, in_features], each row in blocks of the type that its tensor has."""

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return the matrix."""
        tensor = stored.get(f"{part.name}.weight")
        if tensor is None or tensor.dtype not in PACKED_TYPES:
            return None
        return (self._matrix(part, in_features, tensor.dtype),)

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the weights in the blocks."""
        return source.tensor(self._matrix(part, in_features))

    def _matrix(self, part: Projection, in_features: int, *dtypes: str) -> Parameter:
        shape = (part.out_features, in_features)
        return Parameter(f"{part.name}.weight", shape, Role.QUANTIZED, dtypes=dtypes)
