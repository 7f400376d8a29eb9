"""CodeKernels: which kernels compute with weights of few bits, and which of them they hold."""

from enum import Enum

from pagedrun.kernels.code_form import CodeForm

_SIXTEEN = 16  # inputs of which kernels of a GPU load the scales together


class CodeKernels(Enum):
    """Those of a kind of device; where there are none, weights are unpacked when they are read."""

    NONE = "none"
    CPU = "cpu"
    GPU = "gpu"

    def hold(self, form: CodeForm, in_features: int, dtype: str) -> bool:
        """Return whether a linear layer of a model in `dtype`, torch's name, holds such codes."""
        if self is CodeKernels.CPU:
            is_plain = not form.is_float or form.num_bits == 8
            return dtype == "bfloat16" and is_plain and form.can_be_held(in_features)
        if self is CodeKernels.NONE or dtype not in ("bfloat16", "float16"):
            return False
        size = in_features if form.group_size is None else form.group_size
        has_both = form.has_zeros and form.has_minima
        fits = size >= in_features or size % _SIXTEEN == 0
        return fits and not form.is_scattered and not has_both

    @property
    def of_experts(self) -> "CodeKernels":
        """Which kernels there are for the experts of mixtures."""
        return self if self is CodeKernels.GPU else CodeKernels.NONE
