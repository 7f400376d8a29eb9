"""Repetition, presence and frequency penalties, and the token counts that they need."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.logits_processor import PerRequestProcessor, SamplingBatch
from pagedrun.paged.values.request import Request


class Penalties(PerRequestProcessor[Int64s]):
    """Applies `repetition_penalty`, `frequency_penalty` and `presence_penalty`, as vLLM does.

    Each sample has a row of `TokenCounts` from the beginning of its request to its end, preemptions
    included. The value of a request is the row indices of its samples, [n] int64.
    """

    needs_newest_token = True

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._counts = TokenCounts(device)

    def requested(self, request: Request) -> Int64s | None:
        """Add the rows of the samples; the prompt counts for the repetition penalty."""
        params = request.params
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if penalties == (1.0, 0.0, 0.0):
            return None
        seen = request.prompt_token_ids if params.repetition_penalty != 1.0 else ()
        return self._counts.add(params.n, seen, penalties)

    def end(self, row: int) -> None:
        """Free the rows of a request."""
        if row in self._by_row:
            self._counts.remove(self._by_row.pop(row))

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Count the tokens of samples with penalties."""
        positions, lines = self._lines(rows, samples)
        self._counts.count(lines, tokens[positions])

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Penalize the tokens that each sample has seen."""
        assert batch.draws is not None
        logits = logits.float()
        self._counts.penalize(logits, *self._lines(batch.draws.row, batch.draws.sample))
        return logits

    def _lines(self, rows: Int64s, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Return positions and count rows of the samples with penalties, [num_found] int64 each."""
        found = [(index, lines[samples[index]]) for index, lines in self.found(rows)]
        positions, lines = np.array(found, dtype=np.int64).reshape(-1, 2).T.copy()
        return positions, lines


_FIRST_LINES = 16
_FIRST_WIDTH = 64
_FACTORS = ("repetition", "presence", "frequency")


class TokenCounts:
    """Distinct tokens of each sample with their counts: one row ("line") a sample, on the device.

    The width follows the number of distinct tokens, not the vocabulary; lines and width grow as
    needed. token_ids, counts: [num_lines, width] int32, see `count_tokens` in
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
        # Upper bounds of `num_ids` on the host, which save a read from the device.
        self._most_ids = np.zeros(_FIRST_LINES, dtype=np.int64)

    def add(
        self, num_lines: int, seen: Iterable[int], penalties: tuple[float, float, float]
    ) -> Int64s:
        """Return the indices of new lines, [num_lines] int64, with the tokens `seen` at count 0.

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
        """Free lines for later samples."""
        self._free.extend(lines.tolist())

    def count(self, lines: Int64s, tokens: Int64s) -> None:
        """Count tokens[i] in lines[i], [num_tokens] int64 each."""
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
        """Penalize in place the tokens of each line, in its row of logits.

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
        """Grow the lines to `width` ids, at least to twice their width."""
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
