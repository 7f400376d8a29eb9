"""CodeKernels: which kernels compute with weights of few bits, and which of them they hold."""

from enum import Enum

from pagedrun.kernels.code_form import CodeForm

_STEP = 32  # inputs of which kernels of a CPU read the codes together
_SIXTEEN = 16  # inputs of which kernels of a GPU load the scales together


class CodeKernels(Enum):
    """Those of a kind of device; where there are none, weights are unpacked when they are read.

    Plans, what reads a checkpoint and backends all ask this, and so agree.
    """

    NONE = "none"
    CPU = "cpu"
    GPU = "gpu"

    def hold(self, form: CodeForm, in_features: int, dtype: str) -> bool:
        """Return whether a linear layer of a model in `dtype`, torch's name, holds such codes."""
        if self is CodeKernels.CPU:
            return dtype == "bfloat16" and _fits_cpu(form, in_features)
        if self is CodeKernels.GPU:
            return dtype in ("bfloat16", "float16") and _fits_gpu(form, in_features)
        return False

    @property
    def of_experts(self) -> "CodeKernels":
        """Which kernels there are for the experts of mixtures."""
        return self if self is CodeKernels.GPU else CodeKernels.NONE


def _fits_cpu(form: CodeForm, in_features: int) -> bool:
    """Return whether groups lie together and fit steps, and codes of more than five bits have no
    zero points or minima; floats have eight bits."""
    has_offsets = form.has_zeros or form.has_minima
    if form.is_scattered or (form.has_zeros and form.has_minima):
        return False
    if (form.held_bits > 5 and has_offsets) or (form.is_float and form.num_bits != 8):
        return False
    size = in_features if form.group_size is None else form.group_size
    if form.held_bits == 6 and 2 * size == _STEP:
        return in_features % _STEP == 0
    return size >= in_features or size % _STEP == 0


def _fits_gpu(form: CodeForm, in_features: int) -> bool:
    """Return whether groups lie together and fit what is loaded of them."""
    if form.is_scattered or (form.has_zeros and form.has_minima):
        return False
    size = in_features if form.group_size is None else form.group_size
    return size >= in_features or size % _SIXTEEN == 0
