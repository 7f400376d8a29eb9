"""HeldCodes: which of the weights that are stored in few bits stay so in memory."""

from dataclasses import dataclass, replace

from pagedrun.kernels.code_form import CodeForm
from pagedrun.kernels.code_kernels import CodeKernels
from pagedrun.paged.models.network.checkpoint.stored_tensors import (
    NOTHING_STORED,
    StoredTensor,
    StoredTensors,
)


@dataclass(frozen=True, slots=True)
class HeldCodes:
    """What is `stored`, for a model in `dtype` that runs on `kernels`; implements `StoredTensors`.

    Where these hold nothing, nothing is stored.
    """

    stored: StoredTensors
    kernels: CodeKernels
    dtype: str

    def get(self, name: str) -> StoredTensor | None:
        """Return what is stored under a name, None for nothing."""
        return None if self.kernels is CodeKernels.NONE else self.stored.get(name)

    def hold(self, form: CodeForm, in_features: int) -> bool:
        """Return whether linear layers hold such codes."""
        return self.kernels.hold(form, in_features, self.dtype)

    @property
    def of_experts(self) -> "HeldCodes":
        """What is held so of the experts of mixtures."""
        return replace(self, kernels=self.kernels.of_experts)


NOTHING_HELD = HeldCodes(NOTHING_STORED, CodeKernels.NONE, "float32")
