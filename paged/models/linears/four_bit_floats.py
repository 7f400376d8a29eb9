"""FourBitFloats: numbers of four bits (E2M1), two in a byte, with scales for groups of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.network.linear_spec import Projection
from pagedrun.paged.models.network.parameter import Parameter, Role
from pagedrun.paged.models.network.stored_tensors import FLOATS, StoredTensors
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.paged.models.weight_source import WeightSource

# What a code means: sign, two bits of exponent, one of fraction.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_SCALE_BIAS, _NO_NUMBER = 127, 255  # of an exponent in a byte


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
        if in_features % self.group_size:
            raise ModelError(
                f"{part.name}: weights of four bits have groups of {self.group_size}, and "
                f"{in_features} of them are not whole groups; use another version of the model"
            )
        scales = source.read(f"{part.name}.weight_scale")
        if self.whole is None:
            scales = powers_of_two(scales)
        else:
            whole = source.read(f"{part.name}.{self.whole}").float()
            scales = scales.float() / whole if self.divides else scales.float() * whole
        codes = source.read(f"{part.name}.{self.codes}")
        return source.looked_up(part.name, codes, e2m1(), scales)


def e2m1() -> "Tensor":
    """Return what each code means, [16] float32."""
    import torch

    return torch.tensor(E2M1)


def powers_of_two(exponents: "Tensor") -> "Tensor":
    """Return 2^(exponent - 127) of bytes, float32, NaN for 255: the E8M0 of the OCP's formats."""
    import torch

    powers = [2.0 ** (each - _SCALE_BIAS) for each in range(_NO_NUMBER)] + [torch.nan]
    return torch.tensor(powers, device=exponents.device)[exponents.long()]
