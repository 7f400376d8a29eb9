"""FP8 (E4M3) and INT8 codes with scales for blocks, rows or whole matrices.

FP8 as Transformers, DeepSeek and Qwen store it; compressed-tensors and modelopt use the same
tensors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import CodeForm
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.checkpoint.tensors import (
    FLOATS,
    Parameter,
    StoredTensors,
    number_bytes,
)
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.linear_methods import QuantizedWeights, WeightFormat, parameter

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

# Both are multipliers: the inverse of the factor that weights were scaled by.
_SCALES = ("weight_scale_inv", "weight_scale")
_SCALE_DTYPES = (*FLOATS, "F8_E8M0")


@dataclass(frozen=True, slots=True)
class ScaledWeights(WeightFormat):
    """`weight` [out_features, in_features] in `dtype`, "F8_E4M3" or "I8", times its scales.

    `block` rows and columns share a scale; the last block may be smaller. None: one scale for the
    matrix, or one per row.
    """

    dtype: str
    block: tuple[int, int] | None = None

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return codes and scales."""
        codes = stored.get(f"{part.name}.weight")
        if codes is None or codes.dtype != self.dtype:
            return None
        shape = (part.out_features, in_features)
        return (
            parameter(part, "weight", shape, self.dtype),
            self._scales(part, in_features, stored),
        )

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return 8-bit codes."""
        size = None if self.block is None else self.block[1]
        name = f"{part.name}.{_scales_name(part, stored)}"
        return CodeForm(8, size, number_bytes(stored, name), is_float=self.dtype == "F8_E4M3")

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        import torch

        from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

        codes = source.read(f"{part.name}.weight").to(source.device)
        scales = source.read(self._scales(part, in_features, source.stored).name).to(source.device)
        if scales.dtype is torch.float8_e8m0fnu:
            scales = scales.float()
        if self.block is not None:
            rows, columns = self.block
        else:
            scales, columns = scales.reshape(-1, 1), in_features
            rows = 1 if scales.numel() == part.out_features else part.out_features
        return PackedWeight(codes, 8, GroupScales(scales), columns, rows)

    def codes(
        self, part: Projection, in_features: int, source: "WeightSource"
    ) -> tuple["Tensor", "Tensor"]:
        """Return the codes and a scale for each row; `block` must be None.

        Raises `ModelError` for scales that are not finite.
        """
        assert self.block is None, "a block has a scale of its own"
        codes = source.read(f"{part.name}.weight").to(source.device)
        stored = source.read(self._scales(part, in_features, source.stored).name)
        scales = source.scales(part.name, stored).reshape(-1).expand(part.out_features)
        return source.ordered(codes, part.order), source.ordered(scales, part.order)

    def _scales(self, part: Projection, in_features: int, stored: StoredTensors) -> Parameter:
        name, out = _scales_name(part, stored), part.out_features
        shapes: list[tuple[int, ...]] = [(out, 1), (out,), (1, 1), (1,), ()]
        if self.block is not None:
            rows, columns = self.block
            shapes = [(-(-out // rows), -(-in_features // columns))]
        found = stored.get(f"{part.name}.{name}")
        shape = found.shape if found is not None and found.shape in shapes else shapes[0]
        return parameter(part, name, shape, *_SCALE_DTYPES)


def _scales_name(part: Projection, stored: StoredTensors) -> str:
    found = (each for each in _SCALES if stored.get(f"{part.name}.{each}") is not None)
    return next(found, _SCALES[-1])


_E4M3 = (None, "e4m3", "float8_e4m3fn")
MAX_BLOCK = 2**16


def fp8(quantization: JsonObject) -> QuantizedWeights:
    """Return the method of a quantization_config; raises `ModelError` for another kind of FP8."""
    if quantization.string("fmt") not in _E4M3:
        raise quantization.error("fmt", '"e4m3", the only FP8 format that pagedrun reads')
    return QuantizedWeights(
        (ScaledWeights("F8_E4M3", block_size(quantization, "weight_block_size")),)
    )


def block_size(fields: JsonObject, name: str) -> tuple[int, int] | None:
    """Return the rows and columns that share a scale, None without blocks."""
    if not fields.has(name):
        return None
    sizes = fields.get(name)
    found = [each for each in sizes if is_integer(each)] if isinstance(sizes, list) else []
    if len(found) != 2 or sizes != found or not all(1 <= each <= MAX_BLOCK for each in found):
        raise fields.error(name, f"two integers from 1 to {MAX_BLOCK}")
    return found[0], found[1]
