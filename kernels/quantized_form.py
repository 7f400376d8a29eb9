"""Forms of quantized weights: bits, groups and scales, and the kernels that compute with them.

Without torch: plans, checkpoint readers and backends all use `CodeKernels`. `Activations` says
whether these kernels round the inputs of a linear layer.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

_HALF = 2  # bytes
# Values of four-bit floats (E2M1): sign, two bits of exponent, one of fraction.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class Activations(StrEnum):
    """Inputs of linear layers with quantized weights, on a CPU.

    EXACT: those of the model. INT8: rounded to int8, with a scale for each token and block of 32 to
    128 inputs. AUTO: one or the other by the form of the weights and the kernels, see `AUTO_INT8`.
    """

    AUTO = "auto"
    EXACT = "exact"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class CodeForm:
    """Codes of `num_bits`, floats of 4 or 8 bits if `is_float`, and the numbers of a group.

    group_size: neighboring columns; None: a whole row is one group. scale_bytes: of a group's
    scale, and of its minimum where there are minima. groups_per_factor: how many of both a float16
    multiplies; 0: none. is_scattered: columns of a group are not neighbors.
    """

    num_bits: int
    group_size: int | None
    scale_bytes: int
    groups_per_factor: int = 0
    is_float: bool = False
    has_zeros: bool = False
    has_minima: bool = False
    is_scattered: bool = False

    @property
    def held_bits(self) -> int:
        """Bits of a code in the layout of kernels."""
        if self.num_bits <= 4:
            return 4
        return self.num_bits if self.num_bits <= 6 else 8

    @property
    def has_offsets(self) -> bool:
        """True with zero points or minima."""
        return self.has_zeros or self.has_minima

    def num_bytes(self, out_features: int, in_features: int) -> int:
        """Return the bytes of a matrix, without the padding of a layout."""
        groups = 1 if self.group_size is None else -(-in_features // self.group_size)
        scale_bytes = 4 if self.is_float and self.num_bits == 8 else self.scale_bytes
        of_groups = groups * (scale_bytes * (1 + self.has_minima) + self.has_zeros)
        if self.groups_per_factor:
            of_groups += groups // self.groups_per_factor * _HALF * (1 + self.has_minima)
        return -(-out_features * in_features * self.held_bits // 8) + out_features * of_groups

    def rounds_inputs(self, activations: Activations, kernels: "CodeKernels") -> bool:
        """Return whether `kernels` that hold such codes multiply inputs rounded to int8."""
        if self.is_float or not kernels.can_round or activations is Activations.EXACT:
            return False
        if activations is Activations.INT8:
            return True
        return self.group_size is None or self.group_size >= AUTO_INT8[kernels]


# Forms of GGUF blocks.
BLOCK_FORMS = {
    "Q4_0": CodeForm(4, 32, 2),
    "Q4_1": CodeForm(4, 32, 2, has_minima=True),
    "Q5_0": CodeForm(5, 32, 2),
    "Q8_0": CodeForm(8, 32, 2),
    "Q4_K": CodeForm(4, 32, 1, 8, has_minima=True),
    "Q5_K": CodeForm(5, 32, 1, 8, has_minima=True),
    "Q6_K": CodeForm(6, 16, 1, 16),
}

_STEP = 32  # inputs in one step of the CPU kernels
_SIXTEEN = 16  # inputs of which kernels of a GPU load the scales together


class CodeKernels(Enum):
    """Kernels for quantized weights; without any, weights are unpacked when they are read.

    TILES, PAIRS: on a CPU, bfloat16 on AMX tiles or by `vdpbf16ps`, float32 in panels. PANELS: both
    in panels, on any processor. Plans, readers of checkpoints and backends all ask this, and so
    agree.
    """

    NONE = "none"
    TILES = "tiles"
    PAIRS = "pairs"
    PANELS = "panels"
    GPU = "gpu"

    def hold(self, form: CodeForm, in_features: int, dtype: str) -> bool:
        """Return whether a linear layer of a model in `dtype`, torch's name, holds such codes."""
        if self.can_round:
            return dtype in ("bfloat16", "float32") and _fits_cpu(form, in_features)
        if self is CodeKernels.GPU:
            return dtype in ("bfloat16", "float16") and _fits_gpu(form, in_features)
        return False

    @property
    def of_experts(self) -> "CodeKernels":
        """Kernels for the experts of MoE layers."""
        return CodeKernels.PANELS if self is CodeKernels.PAIRS else self

    @property
    def can_round(self) -> bool:
        """True if these kernels, those of a CPU, can multiply inputs rounded to int8."""
        return self in (CodeKernels.TILES, CodeKernels.PAIRS, CodeKernels.PANELS)


# Least group of integer codes for which `Activations.AUTO` is int8: on tiles smaller ones are
# faster in bfloat16 with many rows.
AUTO_INT8 = {CodeKernels.TILES: 128, CodeKernels.PAIRS: 0, CodeKernels.PANELS: 0}


def _fits_cpu(form: CodeForm, in_features: int) -> bool:
    """Return whether groups lie together and fit steps, and codes of more than five bits have no
    zero points or minima; floats have eight bits."""
    if form.is_scattered or (form.has_zeros and form.has_minima):
        return False
    if (form.held_bits > 5 and form.has_offsets) or (form.is_float and form.num_bits != 8):
        return False
    size = in_features if form.group_size is None else form.group_size
    if form.held_bits == 6 and 2 * size == _STEP:
        return in_features % _STEP == 0
    return size >= in_features or size % _STEP == 0


def _fits_gpu(form: CodeForm, in_features: int) -> bool:
    """Return True if groups are contiguous and fit the loaded part."""
    if form.is_scattered or (form.has_zeros and form.has_minima):
        return False
    size = in_features if form.group_size is None else form.group_size
    return size >= in_features or size % _SIXTEEN == 0
