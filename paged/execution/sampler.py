"""Sampler: logits in, token ids out, by each request's own parameters."""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.sampling_batch import SamplingBatch
from pagedrun.paged.scheduling.step_input import Draws, StepInput

NO_TOKEN = -1  # what the kernel gives where the logits hold no choice (NaN, infinity)


class Sampler:
    """Chooses the next token of every pending sample.

    The random stream of a choice is keyed by (seed, row, sample, position), never by the batch.
    `eos_token_ids` may not be chosen before a request's `min_tokens`.
    """

    def __init__(self, eos_token_ids: Seq[int], device: Device) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._device = device

    @torch.inference_mode()
    def sample(self, logits: Tensor, step: StepInput) -> Tensor:
        """Choose a token for each draw of a step.

        logits: [step.num_samples, vocab_size], one row for each chunk that samples. Returns
        [num_draws] int64; `NO_TOKEN` where there is no choice.
        """
        draws = step.draws
        if not len(draws):
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        if len(draws) != len(logits):
            rows = np.cumsum(step.samples)[draws.chunk] - 1
            logits = logits[self._device.place(torch.from_numpy(rows))]
        logits = self._forbid_early_stops(logits, draws)
        return SamplingBatch.of(draws).to(self._device).draw(logits, self._device.kernels)

    def _forbid_early_stops(self, logits: Tensor, draws: Draws) -> Tensor:
        if not draws.stop_token_ids:
            return logits
        logits = logits.clone()
        for draw, own in draws.stop_token_ids.items():
            stops = torch.tensor([*self._eos_token_ids, *own], dtype=torch.int64)
            logits[draw, self._device.place(stops)] = -torch.inf
        return logits
