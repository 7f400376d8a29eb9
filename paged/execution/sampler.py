"""Sampler: logits in, token ids out, by each request's own parameters."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from pagedrun.paged.execution.choices import Choices
from pagedrun.paged.execution.device import Device
from pagedrun.paged.scheduling.sequence import Sequence

NO_TOKEN = -1  # what the kernel gives where the logits hold no choice (NaN, infinity)


class Sampler:
    """Chooses the next token of every pending sample.

    The random stream of a choice is keyed by (seed, row, sample, position), never by the batch.
    `eos_token_ids` may not be chosen before a request's `min_tokens`.
    """

    def __init__(self, eos_token_ids: Seq[int], device: Device) -> None:
        self._eos_token_ids = list(eos_token_ids)
        self._device = device

    @torch.inference_mode()
    def sample(self, logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
        """Choose a token for each pending sample of each sequence.

        logits: [len(sequences), vocab_size], the row of each sequence's last token.
        Returns [num_pending_samples] int64, one sequence's after the other's; `NO_TOKEN` where
        there is no choice.
        """
        if not sequences:
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        logits = self._forbid_early_stops(logits, sequences)
        draws = [
            (row, sequence.request, sample, sequence.num_tokens)
            for row, sequence in enumerate(sequences)
            for sample in sequence.pending_samples
        ]
        rows = [row for row, *_ in draws]
        if rows != list(range(len(logits))):
            logits = logits[self._device.place(torch.tensor(rows))]
        choices = Choices.of(draw[1:] for draw in draws).to(self._device)
        return choices.draw(logits, self._device.kernels)

    def _forbid_early_stops(self, logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
        early = [
            row
            for row, sequence in enumerate(sequences)
            if len(sequence.output_token_ids) < sequence.request.params.min_tokens
        ]
        if not early:
            return logits
        logits = logits.clone()
        for row in early:
            stops = [*self._eos_token_ids, *sequences[row].request.params.stop_token_ids]
            logits[row, self._device.place(torch.tensor(stops, dtype=torch.int64))] = -torch.inf
        return logits
