"""Linear layers in the block formats of GGUF: blocks of codes with their own scales."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import BLOCK_FORMS, CodeForm
from pagedrun.paged.files.gguf import PACKED_TYPES
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, Role, StoredTensors
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.linear_methods import Unpacked

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource


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
        """Return the matrix in the dtype of `source`."""
        return source.unpacked(part.name, self.packed(part, in_features, source))

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return what its blocks are split into."""
        tensor = stored.get(f"{part.name}.weight")
        assert tensor is not None  # as `parameters` said
        return BLOCK_FORMS[tensor.dtype]

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        name = f"{part.name}.weight"
        stored = source.stored.get(name)
        assert stored is not None  # as `parameters` said
        return source.kernels.split_blocks(source.read(name).to(source.device), stored.dtype)

    def _matrix(self, part: Projection, in_features: int, *dtypes: str) -> Parameter:
        shape = (part.out_features, in_features)
        return Parameter(f"{part.name}.weight", shape, Role.QUANTIZED, dtypes=dtypes)
