"""Sampler: logits in, token ids out, by each request's own parameters."""

from collections.abc import Sequence as Seq
from types import ModuleType

import torch
from torch import Tensor

from pagedrun.paged.sequence import Sequence

NO_TOKEN = -1  # what the kernel gives where the logits hold no choice (NaN, infinity)


class Sampler:
    """Chooses the next token of every pending sample.

    The random stream of a choice is keyed by (seed, row, sample, position), never by the batch.
    `eos_token_ids` may not be chosen before a request's `min_tokens`.
    """

    def __init__(self, eos_token_ids: Seq[int], kernels: ModuleType) -> None:
        self._eos_token_ids = list(eos_token_ids)
        self._kernels = kernels

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
        params = [request.params for _, request, *_ in draws]
        ids: Tensor = self._kernels.sample(
            logits if rows == list(range(len(logits))) else logits[torch.tensor(rows)],
            temperature=torch.tensor([p.temperature for p in params]),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int32),
            top_p=torch.tensor([p.top_p for p in params]),
            min_p=torch.tensor([p.min_p for p in params]),
            seed=torch.tensor([p.seed for p in params]),
            row=torch.tensor([request.index for _, request, *_ in draws]),
            sample=torch.tensor([sample for *_, sample, _ in draws]),
            position=torch.tensor([position for *_, position in draws]),
        )
        return ids

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
            logits[row, torch.tensor(stops, dtype=torch.int64)] = -torch.inf
        return logits
