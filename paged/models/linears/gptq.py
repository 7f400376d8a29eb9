"""GPTQ: a few bits a weight, packed along the columns' axis, as GPTQModel stores them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.code_form import CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.packed_bits import group_size, in_order, num_bits, num_groups
from pagedrun.paged.models.linears.unpacked import Unpacked
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors, number_bytes
from pagedrun.paged.models.network.linear_spec import Projection
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource

_LAYOUTS = (None, "gptq", "gptq_v2")


def gptq(quantization: JsonObject) -> Unpacked:
    """Return the method of a quantization_config; raises `ModelError` for another layout."""
    bits = num_bits(quantization, "bits")
    layout = quantization.string("checkpoint_format")
    if layout not in _LAYOUTS:
        raise quantization.error("checkpoint_format", '"gptq" or "gptq_v2"')
    if quantization.get("dynamic"):
        raise quantization.error(
            "dynamic", "empty: pagedrun does not support different settings for each module"
        )
    if quantization.boolean("is_marlin_format", False):
        raise quantization.error("is_marlin_format", "false")
    is_symmetric = quantization.boolean("sym", True)
    size = group_size(quantization, "group_size")
    # Where columns are in the order of their importance, groups of neighbours are not to be had.
    has_any_order = quantization.boolean("desc_act", False) and size is not None
    stores_less_one = layout != "gptq_v2"
    return Unpacked((Gptq(bits, size, is_symmetric, stores_less_one, has_any_order),))


@dataclass(frozen=True, slots=True)
class Gptq:
    """`qweight` [in_features * num_bits / 32, out_features], words of neighbouring columns.

    `group_size` columns have a scale and a zero point for each row; None: all have. `g_idx`
    [in_features] gives each column its group, in any order; where it is missing groups are blocks.
    `stores_less_one`: zero points are stored less one, as the first version of the format does.
    `has_any_order`: config.json says that groups are not blocks.
    """

    num_bits: int
    group_size: int | None
    is_symmetric: bool
    stores_less_one: bool
    has_any_order: bool = False

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return words, zero points, scales, and the columns' groups where they are stored."""
        if stored.get(f"{part.name}.qweight") is None:
            return None
        groups, out = num_groups(in_features, self.group_size), part.out_features
        num_codes = 32 // self.num_bits
        words = (-(-in_features // num_codes), out), (groups, -(-out // num_codes))
        role, dtypes = Role.QUANTIZED, ("I32",)
        parameters = [
            Parameter(f"{part.name}.qweight", words[0], role, dtypes=dtypes),
            Parameter(f"{part.name}.qzeros", words[1], role, dtypes=dtypes),
            Parameter(f"{part.name}.scales", (groups, out), role),
        ]
        if stored.get(f"{part.name}.g_idx") is not None:
            parameters.append(Parameter(f"{part.name}.g_idx", (in_features,), role, dtypes=dtypes))
        return tuple(parameters)

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the matrix in the dtype of `source`."""
        return source.unpacked(part.name, self.packed(part, in_features, source))

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return codes of few bits, without zero points where these are symmetric."""
        is_scattered = self.has_any_order and stored.get(f"{part.name}.g_idx") is not None
        return CodeForm(
            self.num_bits,
            self.group_size,
            number_bytes(stored, f"{part.name}.scales"),
            has_zeros=not self.is_symmetric,
            is_scattered=is_scattered,
        )

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        from pagedrun.kernels.packed_weight import GroupScales, PackedWeight

        unpack, order = source.kernels.unpack_codes, in_order(self.num_bits)

        def words(name: str) -> "Tensor":
            return source.read(f"{part.name}.{name}").to(source.device)

        codes = unpack(words("qweight").T.contiguous(), self.num_bits, order)
        zeros = unpack(words("qzeros"), self.num_bits, order)[:, : part.out_features]
        has_groups = source.stored.get(f"{part.name}.g_idx") is not None
        signed_zeros = self._zeros(part.name, zeros)
        return PackedWeight(
            codes[:, :in_features].contiguous(),
            self.num_bits,
            GroupScales(words("scales").T.contiguous()),
            self.group_size or in_features,
            zeros=None if signed_zeros is None else signed_zeros.T.contiguous(),
            group_of=words("g_idx").long() if has_groups else None,
        )

    def _zeros(self, name: str, stored: "Tensor") -> "Tensor | None":
        """Return zero points, as signed as the codes, of those in the checkpoint; None: all are 0.

        What a symmetric one must have is known, and told by its numbers: labels of versions are
        often wrong.
        """
        if self.is_symmetric:
            if (stored == -1).all() or (stored == 0).all():
                return None
            raise ModelError(
                f"{name}.qzeros: config.json says that codes are symmetric, but these zero "
                "points are not in the middle of their range; use another version of the model"
            )
        if not self.stores_less_one:
            return stored
        half = 2 ** (self.num_bits - 1)
        zeros: Tensor = (stored.int() + half + 1) % (2 * half) - half
        return zeros.to(stored.dtype)
