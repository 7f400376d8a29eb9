"""The optimizer: Muon for the matrices inside the layers, AdamW for all the rest.

Muon is what makes six minutes enough: with AdamW alone the same run has hardly begun to copy
facts after 300 steps.
"""

from collections.abc import Iterable

import torch
from torch import nn

MUON_LEARNING_RATE = 0.02
MUON_MOMENTUM = 0.95
ADAMW_LEARNING_RATE = 4e-3
ADAMW_BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
DECAY_SHARE = 0.4  # of the steps, at the end: the learning rates go down linearly to 0
NUM_WARMUP_STEPS = 10


class DemoOptimizer:
    """Steps a model and its auxiliary heads through `num_steps` updates."""

    def __init__(self, model: nn.Module, heads: nn.Module, num_steps: int) -> None:
        self._num_steps = num_steps
        self._parameters = [*model.parameters(), *heads.parameters()]
        matrices = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.ndim == 2 and "embed" not in name
        ]
        chosen = set(map(id, matrices))
        others = [parameter for parameter in self._parameters if id(parameter) not in chosen]
        self._optimizers = _optimizers(matrices, others)
        self._schedulers = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate_factor)
            for optimizer in self._optimizers
        ]

    def step(self, loss: torch.Tensor) -> None:
        """Go one update down the gradient of `loss`, clipped."""
        loss.backward()  # type: ignore[no-untyped-call]
        used = [parameter for parameter in self._parameters if parameter.grad is not None]
        nn.utils.clip_grad_norm_(used, MAX_GRADIENT_NORM)
        for optimizer, scheduler in zip(self._optimizers, self._schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()

    def _rate_factor(self, step: int) -> float:
        """Return what the learning rates are multiplied by at `step`."""
        warmup = (step + 1) / NUM_WARMUP_STEPS
        decay = (self._num_steps - step) / (DECAY_SHARE * self._num_steps)
        return max(0.0, min(1.0, warmup, decay))


def _optimizers(
    matrices: Iterable[nn.Parameter], others: Iterable[nn.Parameter]
) -> list[torch.optim.Optimizer]:
    muon = torch.optim.Muon(
        matrices, lr=MUON_LEARNING_RATE, momentum=MUON_MOMENTUM, weight_decay=0.0
    )
    adamw = torch.optim.AdamW(
        others, lr=ADAMW_LEARNING_RATE, betas=ADAMW_BETAS, weight_decay=0.0, fused=True
    )
    return [muon, adamw]
