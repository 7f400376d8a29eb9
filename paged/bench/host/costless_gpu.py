"""CostlessGpu: a device that is driven as a GPU is, and computes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pagedrun.kernels.attention.read_once import ON_GPU, ReadOnce
from pagedrun.paged.bench.host.costless_backend import CostlessBackend
from pagedrun.paged.bench.host.step_counts import StepCounts
from pagedrun.paged.execution.device import CapturedStep, Device, HostCopy


@dataclass(frozen=True, slots=True)
class CostlessGpu(Device):
    """The host is a step ahead of it, and decode steps are captured and replayed, as nothing.

    A copy to it takes the host's own copy and no driver's call: `counts` says how many there are.
    """

    counts: StepCounts = field(default_factory=StepCounts)

    @classmethod
    def of(cls, kernels: CostlessBackend) -> "CostlessGpu":
        """Return a device with these kernels, and their counts."""
        return cls(
            torch.device("cpu"),
            kernels,
            async_scheduling=True,
            graphs=True,
            counts=kernels.counts,
        )

    @property
    def is_asynchronous(self) -> bool:
        """As a GPU is."""
        return True

    @property
    def captures(self) -> bool:
        """As a GPU does."""
        return True

    @property
    def read_once(self) -> ReadOnce:
        """As on a GPU."""
        return ON_GPU

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Do a step once, to see what it returns."""
        before = replace(self.counts)
        ids = step()
        self.counts.decodes = before.decodes
        self.counts.captures += 1
        return CostlessStep(ids.clone(), self)

    def place(self, tensor: Tensor) -> Tensor:
        """Return a copy."""
        self.counts.copies += 1
        self.counts.bytes_copied += tensor.nbytes
        return tensor.clone()

    def to_host(self, tensor: Tensor) -> HostCopy:
        """Copy a tensor, which the next step may overwrite."""
        return HostCopy(tensor.clone())


@dataclass(frozen=True, slots=True)
class CostlessStep:
    """Draws other tokens at each replay."""

    ids: Tensor
    device: CostlessGpu

    def replay(self) -> None:
        """Count it."""
        self.device.counts.replays += 1
        kernels = self.device.kernels
        assert isinstance(kernels, CostlessBackend), "made with other kernels"
        self.ids.copy_(kernels.draw(len(self.ids)))
