"""Linear layers in the block formats of GGUF: blocks of codes with their own scales."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import BLOCK_FORMS, CodeForm
from pagedrun.paged.files.gguf import PACKED_TYPES
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, StoredTensors
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.linear_methods import QuantizedWeights, WeightFormat, parameter

if TYPE_CHECKING:
    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource


def gguf(quantization: JsonObject) -> QuantizedWeights:
    """Return the method of a GGUF file; each tensor has its own block type."""
    return QuantizedWeights((GgufBlocks(),))


@dataclass(frozen=True, slots=True)
class GgufBlocks(WeightFormat):
    """`weight` [out_features, in_features], rows in blocks of the tensor's type."""

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return the matrix."""
        tensor = stored.get(f"{part.name}.weight")
        if tensor is None or tensor.dtype not in PACKED_TYPES:
            return None
        return (parameter(part, "weight", (part.out_features, in_features), tensor.dtype),)

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return the form of the split blocks."""
        tensor = stored.get(f"{part.name}.weight")
        assert tensor is not None  # as `parameters` said
        return BLOCK_FORMS[tensor.dtype]

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        name = f"{part.name}.weight"
        stored = source.stored.get(name)
        assert stored is not None  # as `parameters` said
        return source.kernels.split_blocks(source.read(name).to(source.device), stored.dtype)
