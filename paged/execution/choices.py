"""Choices: the parameters of the next token's choice, one of each for every row of logits."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pagedrun.kernels.backend import Backend
from pagedrun.paged.execution.device import Device
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class Choices:
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
    def of(cls, draws: Iterable[tuple[Request, int, int]]) -> "Choices":
        """Return the choices of (request, which of its samples, position of the new token)."""
        rows = list(draws)
        params = [request.params for request, *_ in rows]
        return cls(
            temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int32),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32),
            seed=torch.tensor([p.seed for p in params], dtype=torch.int64),
            row=torch.tensor([request.index for request, *_ in rows], dtype=torch.int64),
            sample=torch.tensor([sample for _, sample, _ in rows], dtype=torch.int64),
            position=torch.tensor([position for *_, position in rows], dtype=torch.int64),
        )

    def to(self, device: Device) -> "Choices":
        """Return the same on a device."""
        return Choices(*(device.place(getattr(self, field.name)) for field in fields(self)))

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
