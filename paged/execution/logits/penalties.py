"""Penalties: the processor of logits that makes tokens less likely, or likelier, to come again."""

import numpy as np
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.asked import Asked
from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.execution.logits.token_counts import TokenCounts
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


class Penalties:
    """Applies `repetition_penalty`, `frequency_penalty` and `presence_penalty`, as vLLM does.

    Each sample has a line of `TokenCounts`, made when its request begins: what preemption does to
    the sample does not touch it.
    """

    needs_newest_token = True
    can_be_captured = False

    def __init__(self, device: Device) -> None:
        self._counts = TokenCounts(device)
        self._lines: Asked[Int64s] = Asked()  # [n] int64, those of a request's samples

    def begin(self, request: Request) -> None:
        """Make the lines of a request's samples; the prompt matters to one of the penalties."""
        self.end(request.index)
        params = request.params
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if penalties != (1.0, 0.0, 0.0):
            seen = request.prompt_token_ids if params.repetition_penalty != 1.0 else ()
            self._lines[request.index] = self._counts.add(params.n, seen, penalties)

    def end(self, row: int) -> None:
        """Give the lines of a request back."""
        lines = self._lines.pop(row)
        if lines is not None:
            self._counts.remove(lines)

    def applies(self, draws: Draws) -> bool:
        """Return whether some request has a penalty."""
        return self._lines.is_asked(draws.row)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Count the tokens of samples that have a line."""
        places, lines = self._found(rows, samples)
        self._counts.count(lines, tokens[places])

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Penalize what each sample has come across."""
        assert batch.draws is not None
        logits = logits.float()
        self._counts.penalize(logits, *self._found(batch.draws.row, batch.draws.sample))
        return logits

    def _found(self, rows: Int64s, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Return which of these samples have a line, and the line, [num_found] int64 each."""
        found = [(place, lines[samples[place]]) for place, lines in self._lines.found(rows)]
        places, lines = np.array(found, dtype=np.int64).reshape(-1, 2).T.copy()
        return places, lines
