"""PackQuantized: a few bits a weight, packed along each row, as compressed-tensors stores them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.code_form import CodeForm
from pagedrun.paged.models.linears.packed_bits import in_order, num_groups
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors, number_bytes
from pagedrun.paged.models.network.linear_spec import Projection
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class PackQuantized:
    """`weight_packed` [out_features, in_features * num_bits / 32], words of neighbouring columns.

    `group_size` columns have a scale for each row, and a zero point unless `is_symmetric`; None:
    all have. `weight_g_idx` [in_features] gives each column its group where it is stored.
    """

    num_bits: int
    group_size: int | None
    is_symmetric: bool

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return words, scales, the shape, and what else is stored of zero points and groups."""
        packed = stored.get(f"{part.name}.weight_packed")
        num_codes, out = 32 // self.num_bits, part.out_features
        shape = (out, -(-in_features // num_codes))
        if packed is None:
            return None
        groups = num_groups(in_features, self.group_size)
        tensors: list[tuple[str, tuple[int, ...], str]] = [
            ("weight_packed", shape, "I32"),
            ("weight_shape", (2,), "I64"),
        ]
        if not self.is_symmetric:
            tensors.append(("weight_zero_point", (-(-out // num_codes), groups), "I32"))
        if stored.get(f"{part.name}.weight_g_idx") is not None:
            tensors.append(("weight_g_idx", (in_features,), "I32"))
        role = Role.QUANTIZED
        return (
            *(Parameter(f"{part.name}.{end}", s, role, dtypes=(d,)) for end, s, d in tensors),
            Parameter(f"{part.name}.weight_scale", (out, groups), role),
        )

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the matrix in the dtype of `source`."""
        return source.unpacked(part.name, self.packed(part, in_features, source))

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return codes of few bits, with zero points unless these are symmetric."""
        return CodeForm(
            self.num_bits,
            self.group_size,
            number_bytes(stored, f"{part.name}.weight_scale"),
            has_zeros=not self.is_symmetric,
            is_scattered=stored.get(f"{part.name}.weight_g_idx") is not None,
        )

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        from pagedrun.kernels.packed_weight import GroupScales, PackedWeight

        unpack, order = source.kernels.unpack_codes, in_order(self.num_bits)

        def read(end: str) -> "Tensor":
            return source.read(f"{part.name}.{end}").to(source.device)

        if read("weight_shape").tolist() != [part.out_features, in_features]:
            raise ModelError(
                f"{part.name}.weight_shape is not [{part.out_features}, {in_features}], as "
                "config.json says; check that both come from the same model"
            )
        codes = unpack(read("weight_packed"), self.num_bits, order)[:, :in_features].contiguous()
        zeros = None
        if not self.is_symmetric:  # packed along the other axis
            words = read("weight_zero_point").T.contiguous()
            zeros = unpack(words, self.num_bits, order)[:, : part.out_features].T.contiguous()
        is_ordered = source.stored.get(f"{part.name}.weight_g_idx") is None
        return PackedWeight(
            codes,
            self.num_bits,
            GroupScales(read("weight_scale")),
            self.group_size or in_features,
            zeros=zeros,
            group_of=None if is_ordered else read("weight_g_idx").long(),
        )
