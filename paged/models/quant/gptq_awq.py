"""GPTQ and AWQ: integer codes of 2 to 8 bits, packed into words of 32 bits.

GPTQ (as GPTQModel stores it) packs neighboring columns into a word, AWQ (as AutoAWQ stores it)
eight rows of one column. Groups of columns have a scale and a zero point for each row.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, StoredTensors, number_bytes
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.linear_methods import QuantizedWeights, WeightFormat, parameter
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

_GPTQ_LAYOUTS = (None, "gptq", "gptq_v2")


def gptq(quantization: JsonObject) -> QuantizedWeights:
    """Return the method of a quantization_config; raises `ModelError` for another layout."""
    bits = num_bits(quantization, "bits")
    layout = quantization.string("checkpoint_format")
    if layout not in _GPTQ_LAYOUTS:
        raise quantization.error("checkpoint_format", '"gptq" or "gptq_v2"')
    if quantization.get("dynamic"):
        raise quantization.error(
            "dynamic", "empty: pagedrun does not support different settings for each module"
        )
    if quantization.boolean("is_marlin_format", False):
        raise quantization.error("is_marlin_format", "false")
    is_symmetric = quantization.boolean("sym", True)
    size = group_size(quantization, "group_size")
    # Columns sorted by importance have no groups of neighbors.
    desc_act = quantization.boolean("desc_act", False) and size is not None
    zeros_minus_one = layout != "gptq_v2"
    return QuantizedWeights((Gptq(bits, size, is_symmetric, zeros_minus_one, desc_act),))


@dataclass(frozen=True, slots=True)
class Gptq(WeightFormat):
    """`qweight` [in_features * num_bits / 32, out_features], words of neighboring columns.

    `group_size` columns share a scale and a zero point in each row; None: all columns. `g_idx`
    [in_features] is the group of each column, in any order; without it groups are contiguous.
    `zeros_minus_one`: zero points are stored minus 1, as in version 1 of the format. `desc_act`:
    config.json declares groups that are not contiguous.
    """

    num_bits: int
    group_size: int | None
    is_symmetric: bool
    zeros_minus_one: bool
    desc_act: bool = False

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return words, zero points, scales, and the groups of columns if stored."""
        if stored.get(f"{part.name}.qweight") is None:
            return None
        groups, out = num_groups(in_features, self.group_size), part.out_features
        num_codes = 32 // self.num_bits
        found = [
            parameter(part, "qweight", (-(-in_features // num_codes), out), "I32"),
            parameter(part, "qzeros", (groups, -(-out // num_codes)), "I32"),
            parameter(part, "scales", (groups, out)),
        ]
        if stored.get(f"{part.name}.g_idx") is not None:
            found.append(parameter(part, "g_idx", (in_features,), "I32"))
        return tuple(found)

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return codes of `num_bits`, without zero points if symmetric."""
        is_scattered = self.desc_act and stored.get(f"{part.name}.g_idx") is not None
        return CodeForm(
            self.num_bits,
            self.group_size,
            number_bytes(stored, f"{part.name}.scales"),
            has_zeros=not self.is_symmetric,
            is_scattered=is_scattered,
        )

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        import torch

        from pagedrun.kernels.quantized_weight import DeferredCodes, GroupScales, PackedWeight

        unpack, order = source.kernels.unpack_codes, ascending_order(self.num_bits)

        def words(name: str) -> "Tensor":
            return source.read(f"{part.name}.{name}").to(source.device)

        columns = words("qweight")

        def codes(start: int, end: int) -> "Tensor":
            of_rows = columns[:, start:end].T.contiguous()
            return unpack(of_rows, self.num_bits, order)[:, :in_features]

        zeros = unpack(words("qzeros"), self.num_bits, order)[:, : part.out_features]
        has_groups = source.stored.get(f"{part.name}.g_idx") is not None
        signed_zeros = self._zeros(part.name, zeros)
        return PackedWeight(
            DeferredCodes(torch.Size([part.out_features, in_features]), torch.int8, codes),
            self.num_bits,
            GroupScales(words("scales").T.contiguous()),
            self.group_size or in_features,
            zeros=None if signed_zeros is None else signed_zeros.T.contiguous(),
            group_of=words("g_idx").long() if has_groups else None,
        )

    def _zeros(self, name: str, stored: "Tensor") -> "Tensor | None":
        """Return signed zero points of the stored ones, None if all are 0.

        Symmetric checkpoints are recognized by the values: version labels are often wrong.
        """
        if self.is_symmetric:
            if (stored == -1).all() or (stored == 0).all():
                return None
            raise ModelError(
                f"{name}.qzeros: config.json says that codes are symmetric, but these zero "
                "points are not in the middle of their range; use another version of the model"
            )
        if not self.zeros_minus_one:
            return stored
        half = 2 ** (self.num_bits - 1)
        zeros: Tensor = (stored.int() + half + 1) % (2 * half) - half
        return zeros.to(stored.dtype)


_AWQ_BITS = 4
# Column of the word that is in bits 0, 4, 8, ….
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(quantization: JsonObject) -> QuantizedWeights:
    """Return the method of a quantization_config; raises `ModelError` for another layout."""
    bits = "w_bit" if quantization.has("w_bit") else "bits"
    quantization.integer(bits, _AWQ_BITS, _AWQ_BITS)
    version = quantization.string("version")
    if version is not None and version.lower() != "gemm":
        raise quantization.error("version", '"gemm", the only AWQ layout that pagedrun reads')
    if not quantization.boolean("zero_point", True):
        raise quantization.error("zero_point", "true: pagedrun reads AWQ with zero points only")
    size = "q_group_size" if quantization.has("q_group_size") else "group_size"
    return QuantizedWeights((Awq(group_size(quantization, size, 128)),))


@dataclass(frozen=True, slots=True)
class Awq(WeightFormat):
    """`qweight` [in_features, out_features / 8], words of eight rows of one column.

    `group_size` neighboring columns share a scale and a zero point in each row; None: all columns.
    """

    group_size: int | None

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return words, zero points in the same packing, and scales."""
        if stored.get(f"{part.name}.qweight") is None:
            return None
        groups, out = num_groups(in_features, self.group_size), part.out_features
        num_words = -(-out // len(_AWQ_ORDER))
        return (
            parameter(part, "qweight", (in_features, num_words), "I32"),
            parameter(part, "qzeros", (groups, num_words), "I32"),
            parameter(part, "scales", (groups, out)),
        )

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return 4-bit codes with zero points."""
        size = number_bytes(stored, f"{part.name}.scales")
        return CodeForm(_AWQ_BITS, self.group_size, size, has_zeros=True)

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        import torch

        from pagedrun.kernels.quantized_weight import DeferredCodes, GroupScales, PackedWeight

        words = {
            name: source.read(f"{part.name}.{name}").to(source.device)
            for name in ("qweight", "qzeros")
        }

        def rows(name: str, start: int, end: int) -> "Tensor":
            first, last = start // len(_AWQ_ORDER), -(-end // len(_AWQ_ORDER))
            unpack = source.kernels.unpack_codes
            found = unpack(words[name][:, first:last], _AWQ_BITS, _AWQ_ORDER, transposed=True)
            return found[start - first * len(_AWQ_ORDER) :][: end - start]

        shape = torch.Size([part.out_features, in_features])
        codes = DeferredCodes(shape, torch.int8, partial(rows, "qweight"))
        scales = source.read(f"{part.name}.scales").T.contiguous().to(source.device)
        size = self.group_size or in_features
        zeros = rows("qzeros", 0, part.out_features)
        return PackedWeight(codes, _AWQ_BITS, GroupScales(scales), size, zeros=zeros)


MAX_GROUP = 2**20
# Widths that fill a word of 32 bits.
WIDTHS = (2, 4, 8)


def group_size(quantization: JsonObject, name: str, default: int | None = None) -> int | None:
    """Return the number of columns that share a scale, None for all (-1)."""
    if quantization.get(name) == -1:
        return None
    return quantization.integer(name, 1, MAX_GROUP, default)


def num_bits(quantization: JsonObject, name: str) -> int:
    """Return the bits of a code; raises `ModelError` for a width that does not fill words."""
    bits = quantization.integer(name, 1, 32)
    if bits not in WIDTHS:
        raise quantization.error(name, f"one of {', '.join(map(str, WIDTHS))}")
    return bits


def num_groups(in_features: int, size: int | None) -> int:
    """Return the number of groups in a row; the last may be smaller."""
    return 1 if size is None else -(-in_features // size)


def ascending_order(bits: int) -> tuple[int, ...]:
    """Return the order of codes in a word with the first in the lowest bits."""
    return tuple(range(32 // bits))
