"""FP4 (E2M1) codes with group scales: NVFP4 and MXFP4, and the checkpoints of modelopt.

Two codes share a byte. NVFP4 has an E4M3 scale for 16 weights and a scale of the whole matrix,
MXFP4 a power of two for 32 weights. TensorRT Model Optimizer (modelopt) writes NVFP4 and FP8
layers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import E2M1, CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import FLOATS, Parameter, Role, StoredTensors
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.fp8 import ScaledCodes
from pagedrun.paged.models.quant.linear_methods import Unpacked
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

_SCALE_BIAS, _NAN_EXPONENT = 127, 255  # of an exponent in a byte


@dataclass(frozen=True, slots=True)
class FourBitFloats:
    """`{codes}` [out_features, in_features / 2] uint8, of each byte the low half first, and
    `weight_scale` [out_features, in_features / group_size].

    Scales are numbers in E4M3, multiplied or divided by the one number in `whole`, or exponents of
    two in a byte where that is None.
    """

    codes: str
    group_size: int
    whole: str | None = None
    divides: bool = False

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return codes, scales, and the scale of the whole matrix if there is one."""
        codes = stored.get(f"{part.name}.{self.codes}")
        if codes is None or codes.dtype != "U8":
            return None
        out, role = part.out_features, Role.QUANTIZED
        groups = -(-in_features // self.group_size)
        shape = (out, groups * self.group_size // 2)
        scale = "U8" if self.whole is None else "F8_E4M3"
        found = [
            Parameter(f"{part.name}.{self.codes}", shape, role, dtypes=("U8",)),
            Parameter(f"{part.name}.weight_scale", (out, groups), role, dtypes=(scale,)),
        ]
        if self.whole is not None:
            name = f"{part.name}.{self.whole}"
            whole = stored.get(name)
            one = () if whole is not None and whole.shape == () else (1,)
            found.append(Parameter(name, one, role, dtypes=FLOATS))
        return tuple(found)

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return each code's number times its scale."""
        scales = self._scales(part, in_features, source)
        if self.whole is None:
            scales = powers_of_two(scales)
        codes = source.read(f"{part.name}.{self.codes}")
        return source.dequantize_table(part.name, codes, e2m1(), scales)

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return floats of four bits, with a byte for each group or a float32."""
        return CodeForm(4, self.group_size, 1 if self.whole is None else 4, is_float=True)

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        scales = self._scales(part, in_features, source)
        codes = source.read(f"{part.name}.{self.codes}")
        return packed_floats(codes, scales, self.group_size, source)

    def _scales(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return exponents of two, uint8, or scales in float32."""
        if in_features % self.group_size:
            raise ModelError(
                f"{part.name}: weights of four bits have groups of {self.group_size}, and "
                f"{in_features} weights are not a whole number of groups; use another version of "
                "the model"
            )
        scales = source.read(f"{part.name}.weight_scale")
        if self.whole is None:
            return scales
        whole = source.read(f"{part.name}.{self.whole}").float()
        return scales.float() / whole if self.divides else scales.float() * whole


def packed_floats(
    pairs: "Tensor", scales: "Tensor", group_size: int, source: "WeightSource"
) -> "PackedWeight":
    """Return a matrix of floats of four bits.

    pairs: [num_rows, num_bytes] uint8, of each byte the low half is the first code. scales:
    [num_rows, num_groups], float32, or uint8: exponents of two.
    """
    import torch

    from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

    pairs, scales = pairs.to(source.device), scales.to(source.device)
    codes = torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1)
    if scales.dtype is torch.uint8:
        scales = scales.contiguous().view(torch.float8_e8m0fnu)
    return PackedWeight(codes, 4, GroupScales(scales), group_size)


def e2m1() -> "Tensor":
    """Return what each code means, [16] float32."""
    import torch

    return torch.tensor(E2M1)


def powers_of_two(exponents: "Tensor") -> "Tensor":
    """Return 2^(exponent - 127) of bytes, float32, NaN for 255: the E8M0 of the OCP's formats."""
    import torch

    powers = [2.0 ** (each - _SCALE_BIAS) for each in range(_NAN_EXPONENT)] + [torch.nan]
    return torch.tensor(powers, device=exponents.device)[exponents.long()]


_NVFP4_GROUP = 16
_MODELOPT_ALGORITHMS = ("FP8", "NVFP4")
# A model may have layers of both, whichever is named.
_MODELOPT_FORMATS = (
    FourBitFloats("weight", _NVFP4_GROUP, "weight_scale_2"),
    ScaledCodes("F8_E4M3"),
)


def modelopt(quantization: JsonObject) -> Unpacked:
    """Return the method of a quantization_config; raises `ModelError` for other algorithms."""
    if quantization.string("quant_algo") not in _MODELOPT_ALGORITHMS:
        raise quantization.error("quant_algo", f"one of {', '.join(_MODELOPT_ALGORITHMS)}")
    quantization.integer("group_size", _NVFP4_GROUP, _NVFP4_GROUP, _NVFP4_GROUP)
    return Unpacked(_MODELOPT_FORMATS)
