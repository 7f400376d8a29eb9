"""FP4 (E2M1) codes with group scales: NVFP4 and MXFP4, and the checkpoints of modelopt.

Two codes share a byte. NVFP4 has an E4M3 scale for 16 weights and a global scale, MXFP4 a power
of two for 32 weights. TensorRT Model Optimizer (modelopt) writes NVFP4 and FP8 layers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import E2M1, CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, StoredTensors
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.fp8 import ScaledWeights
from pagedrun.paged.models.quant.linear_methods import QuantizedWeights, WeightFormat, parameter
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

_SCALE_BIAS, _NAN_EXPONENT = 127, 255  # E8M0


@dataclass(frozen=True, slots=True)
class Fp4Weights(WeightFormat):
    """`{codes}` [out_features, in_features / 2] uint8, the low half of each byte first, and
    `weight_scale` [out_features, in_features / group_size].

    Scales are E4M3 numbers, multiplied or divided by the scalar `global_scale`; without one they
    are exponents of two in a byte.
    """

    codes: str
    group_size: int
    global_scale: str | None = None
    scale_is_inverse: bool = False

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return codes, scales, and the global scale if there is one."""
        codes = stored.get(f"{part.name}.{self.codes}")
        if codes is None or codes.dtype != "U8":
            return None
        out, groups = part.out_features, -(-in_features // self.group_size)
        scale = "U8" if self.global_scale is None else "F8_E4M3"
        found = [
            parameter(part, self.codes, (out, groups * self.group_size // 2), "U8"),
            parameter(part, "weight_scale", (out, groups), scale),
        ]
        if self.global_scale is not None:
            whole = stored.get(f"{part.name}.{self.global_scale}")
            one = () if whole is not None and whole.shape == () else (1,)
            found.append(parameter(part, self.global_scale, one))
        return tuple(found)

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the values of the codes times their scales."""
        scales = self._scales(part, in_features, source)
        if self.global_scale is None:
            scales = powers_of_two(scales)
        codes = source.read(f"{part.name}.{self.codes}")
        return source.dequantize_table(part.name, codes, e2m1(), scales)

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return 4-bit floats with a byte, or a float32, for each group."""
        return CodeForm(4, self.group_size, 1 if self.global_scale is None else 4, is_float=True)

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        scales = self._scales(part, in_features, source)
        codes = source.read(f"{part.name}.{self.codes}")
        return packed_floats(codes, scales, self.group_size, source)

    def _scales(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return exponents of two, uint8, or scales in float32."""
        require_whole_groups(f"{part.name}: FP4 has", self.group_size, in_features)
        scales = source.read(f"{part.name}.weight_scale")
        if self.global_scale is None:
            return scales
        global_scale = source.read(f"{part.name}.{self.global_scale}").float()
        return (
            scales.float() / global_scale
            if self.scale_is_inverse
            else scales.float() * global_scale
        )


def require_whole_groups(subject: str, group_size: int, num_weights: int) -> None:
    """Raise `ModelError` unless a row of weights is a whole number of groups."""
    if num_weights % group_size:
        raise ModelError(
            f"{subject} groups of {group_size} weights, and {num_weights} weights are not a whole "
            "number of groups; use another version of the model"
        )


def packed_floats(
    pairs: "Tensor", scales: "Tensor", group_size: int, source: "WeightSource"
) -> "PackedWeight":
    """Return a matrix of 4-bit floats.

    pairs: [num_rows, num_bytes] uint8, the low half of each byte is the first code. scales:
    [num_rows, num_groups], float32, or uint8 exponents of two.
    """
    import torch

    from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

    pairs, scales = pairs.to(source.device), scales.to(source.device)
    codes = torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1)
    if scales.dtype is torch.uint8:
        scales = scales.contiguous().view(torch.float8_e8m0fnu)
    return PackedWeight(codes, 4, GroupScales(scales), group_size)


def e2m1() -> "Tensor":
    """Return the values of the codes, [16] float32."""
    import torch

    return torch.tensor(E2M1)


def powers_of_two(exponents: "Tensor") -> "Tensor":
    """Return 2^(exponent - 127) of bytes as float32, NaN for 255 (E8M0 of the OCP formats)."""
    import torch

    powers = [2.0 ** (each - _SCALE_BIAS) for each in range(_NAN_EXPONENT)] + [torch.nan]
    return torch.tensor(powers, device=exponents.device)[exponents.long()]


_NVFP4_GROUP = 16
_MODELOPT_ALGORITHMS = ("FP8", "NVFP4")
# A model may have layers of both, whichever is declared.
_MODELOPT_FORMATS = (
    Fp4Weights("weight", _NVFP4_GROUP, "weight_scale_2"),
    ScaledWeights("F8_E4M3"),
)


def modelopt(quantization: JsonObject) -> QuantizedWeights:
    """Return the method of a quantization_config; raises `ModelError` for other algorithms."""
    if quantization.string("quant_algo") not in _MODELOPT_ALGORITHMS:
        raise quantization.error("quant_algo", f"one of {', '.join(_MODELOPT_ALGORITHMS)}")
    quantization.integer("group_size", _NVFP4_GROUP, _NVFP4_GROUP, _NVFP4_GROUP)
    return QuantizedWeights(_MODELOPT_FORMATS)
