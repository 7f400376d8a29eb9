"""HostCopy: a tensor on its way to the host."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor that is there when `done` has happened, at once without."""

    tensor: Tensor
    done: torch.cuda.Event | None = None

    def wait(self) -> Tensor:
        """Return the tensor when it is there."""
        if self.done is not None:
            self.done.synchronize()
        return self.tensor
