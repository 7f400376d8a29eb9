"""KnownTokens: the tokens that a step goes on from, where only the device has seen them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """ids: [num_sampled] int64 on the device, the tokens of the step before. sources: [num_unknown]
    int64, which of them the unknown tokens of this step are, in its order."""

    ids: Tensor
    sources: NDArray[np.int64]

    def chosen(self, device: Device) -> Tensor:
        """Return the unknown tokens, [num_unknown] int64; any token where there was no choice."""
        sources = device.place(torch.from_numpy(self.sources))
        return self.ids.index_select(0, sources).clamp(min=0)
