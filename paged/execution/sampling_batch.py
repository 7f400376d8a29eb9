"""SamplingBatch: the parameters of the next tokens' choice, one of each for every row of logits."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pagedrun.kernels.backend import Backend
from pagedrun.paged.execution.device import Device
from pagedrun.paged.scheduling.step_input import Draws


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What `sample` takes besides logits; see `kernels/reference/sample.py`. All [num_rows].

    temperature, top_p, min_p: float32. top_k: int32. seed, row, sample, position: int64.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    row: Tensor
    sample: Tensor
    position: Tensor

    @classmethod
    def of(cls, draws: Draws) -> "SamplingBatch":
        """Return the parameters of a step's draws, in their order, on the host."""
        return cls(*(torch.from_numpy(getattr(draws, field.name)) for field in fields(cls)))

    def to(self, device: Device) -> "SamplingBatch":
        """Return the same on a device."""
        return SamplingBatch(*(device.place(getattr(self, field.name)) for field in fields(self)))

    def draw(self, logits: Tensor, kernels: Backend) -> Tensor:
        """Choose a token for each row of logits [num_rows, vocab_size]; [num_rows] int64."""
        return kernels.sample(
            logits,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seed,
            self.row,
            self.sample,
            self.position,
        )
