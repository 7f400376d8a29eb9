"""AWQ: four bits a weight, packed along the rows' axis, as AutoAWQ stores them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.code_form import CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.packed_bits import group_size, num_groups
from pagedrun.paged.models.linears.unpacked import Unpacked
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors, number_bytes
from pagedrun.paged.models.network.linear_spec import Projection

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource

_NUM_BITS = 4
# Which of its word's columns is in the bits from 0, 4, 8, … on.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(quantization: JsonObject) -> Unpacked:
    """Return the method of a quantization_config; raises `ModelError` for another layout."""
    bits = "w_bit" if quantization.has("w_bit") else "bits"
    quantization.integer(bits, _NUM_BITS, _NUM_BITS)
    version = quantization.string("version")
    if version is not None and version.lower() != "gemm":
        raise quantization.error("version", '"gemm", the only AWQ layout that pagedrun reads')
    if not quantization.boolean("zero_point", True):
        raise quantization.error("zero_point", "true: pagedrun reads AWQ with zero points only")
    size = "q_group_size" if quantization.has("q_group_size") else "group_size"
    return Unpacked((Awq(group_size(quantization, size, 128)),))


@dataclass(frozen=True, slots=True)
class Awq:
    """`qweight` [in_features, out_features / 8], words of eight rows of a column each.

    `group_size` neighbouring columns have a scale and a zero point for each row; None: all have.
    """

    group_size: int | None

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return words, zero points, packed alike, and scales."""
        if stored.get(f"{part.name}.qweight") is None:
            return None
        groups, out = num_groups(in_features, self.group_size), part.out_features
        num_words = -(-out // len(_ORDER))
        words = (in_features, num_words), (groups, num_words)
        role, dtypes = Role.QUANTIZED, ("I32",)
        return (
            Parameter(f"{part.name}.qweight", words[0], role, dtypes=dtypes),
            Parameter(f"{part.name}.qzeros", words[1], role, dtypes=dtypes),
            Parameter(f"{part.name}.scales", (groups, out), role),
        )

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the matrix in the dtype of `source`."""
        return source.unpacked(part.name, self.packed(part, in_features, source))

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return codes of four bits with zero points."""
        size = number_bytes(stored, f"{part.name}.scales")
        return CodeForm(_NUM_BITS, self.group_size, size, has_zeros=True)

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        from pagedrun.kernels.packed_weight import GroupScales, PackedWeight

        def codes(name: str) -> "Tensor":
            words = source.read(f"{part.name}.{name}").to(source.device)
            unpacked = source.kernels.unpack_codes(words, _NUM_BITS, _ORDER)
            return unpacked[:, : part.out_features].T.contiguous()

        scales = source.read(f"{part.name}.scales").T.contiguous().to(source.device)
        size = self.group_size or in_features
        return PackedWeight(
            codes("qweight"), _NUM_BITS, GroupScales(scales), size, zeros=codes("qzeros")
        )
