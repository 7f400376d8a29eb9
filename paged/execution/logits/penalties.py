"""Repetition, presence and frequency penalties, and the token counts that they need."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.logits_processor import SamplingBatch
from pagedrun.paged.execution.logits.token_processors import PerRequest
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
        self._lines: PerRequest[Int64s] = PerRequest()  # [n] int64, those of a request's samples

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


_FIRST_LINES = 16
_FIRST_WIDTH = 64
_FACTORS = ("repetition", "presence", "frequency")


class TokenCounts:
    """A line for each sample with its distinct tokens, in tensors on the device.

    A line is as long as the tokens are many that its sample has come across, not the vocabulary;
    all grow as needed. token_ids, counts: [num_lines, width] int32, see `count_tokens` in
    `pagedrun.kernels.reference`. num_ids: [num_lines] int32. repetition, presence, frequency:
    [num_lines] float32, the sample's penalties.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.token_ids = self._zeros((_FIRST_LINES, _FIRST_WIDTH), torch.int32)
        self.counts = self._zeros((_FIRST_LINES, _FIRST_WIDTH), torch.int32)
        self.num_ids = self._zeros((_FIRST_LINES,), torch.int32)
        self.repetition, self.presence, self.frequency = (
            self._zeros((_FIRST_LINES,), torch.float32) for _ in _FACTORS
        )
        self._free = list(range(_FIRST_LINES - 1, -1, -1))
        # The host's bound of each line's ids, so that it need not ask the device.
        self._most_ids = np.zeros(_FIRST_LINES, dtype=np.int64)

    def add(
        self, num_lines: int, seen: Iterable[int], penalties: tuple[float, float, float]
    ) -> Int64s:
        """Return new lines, [num_lines] int64, that hold the tokens `seen`, none counted yet.

        penalties: repetition, presence and frequency.
        """
        token_ids = np.unique(np.fromiter(seen, dtype=np.int32))
        while len(self._free) < num_lines:
            self._add_lines()
        lines = np.array([self._free.pop() for _ in range(num_lines)], dtype=np.int64)
        self._most_ids[lines] = len(token_ids)
        self._widen(len(token_ids))
        places = self._placed(lines)
        self.token_ids[places, : len(token_ids)] = self._placed(token_ids)
        self.counts[places] = 0
        self.num_ids[places] = len(token_ids)
        for name, value in zip(_FACTORS, penalties, strict=True):
            getattr(self, name)[places] = value
        return lines

    def remove(self, lines: Int64s) -> None:
        """Let later samples have these lines."""
        self._free.extend(lines.tolist())

    def count(self, lines: Int64s, tokens: Int64s) -> None:
        """Count tokens, [num_tokens] int64, each in the line of its place."""
        while len(lines):
            distinct, first = np.unique(lines, return_index=True)
            self._most_ids[distinct] += 1
            self._widen(int(self._most_ids[distinct].max()))
            self._device.kernels.count_tokens(
                self.token_ids,
                self.counts,
                self.num_ids,
                self._placed(distinct),
                self._placed(tokens[first]),
            )
            lines, tokens = np.delete(lines, first), np.delete(tokens, first)

    def penalize(self, logits: Tensor, rows: Int64s, lines: Int64s) -> None:
        """Penalize in place what each line holds, in its row of logits.

        logits: [num_rows, vocab_size] float32. rows, lines: [num_penalized] int64.
        """
        self._device.kernels.penalize(
            logits,
            self._placed(rows),
            self._placed(lines),
            self.token_ids,
            self.counts,
            self.num_ids,
            self.repetition,
            self.presence,
            self.frequency,
        )

    def _add_lines(self) -> None:
        old = len(self._most_ids)
        for name in ("token_ids", "counts", "num_ids", *_FACTORS):
            tensor = getattr(self, name)
            setattr(self, name, torch.cat([tensor, torch.zeros_like(tensor)]))
        self._most_ids = np.concatenate([self._most_ids, np.zeros_like(self._most_ids)])
        self._free = [*range(2 * old - 1, old - 1, -1), *self._free]

    def _widen(self, width: int) -> None:
        """Make room for so many ids in each line, and for twice as many as before."""
        old = self.token_ids.shape[1]
        if width <= old:
            return
        more = max(width, 2 * old) - old
        for name in ("token_ids", "counts"):
            tensor = getattr(self, name)
            room = self._zeros((len(tensor), more), torch.int32)
            setattr(self, name, torch.cat([tensor, room], dim=1))

    def _placed(self, array: "np.ndarray") -> Tensor:
        return self._device.place(torch.from_numpy(array))

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device.torch_device)
