"""PrefixReads: the keys and values that attention reads, with and without reading prefixes once.

The engine learns from block tables which rows share a partition (`prefix_sharing`); the plan knows
it beforehand: rows in run order have in common what every row between them has. What is counted
here is what `ForwardBatch.tokens_read` counts in the run.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.paged.scheduling.step_input import StepInput

Int64s = NDArray[np.int64]


def common_with_previous(common: NDArray[np.int32], places: Int64s) -> Int64s:
    """Return what each of some rows has in common with the one before it among them, in tokens.

    common: [num_rows] int32, tokens that each row of the run order has in common with the row
    before. places: [num_places] int64, ascending, no place twice. Returns [num_places - 1] int64.
    """
    if len(places) < 2:
        return np.zeros(0, dtype=np.int64)
    between = common[places[0] + 1 : places[-1] + 1]
    return np.minimum.reduceat(between, places[:-1] - places[0]).astype(np.int64)


class PrefixReads:
    """Bytes of keys and values that attention reads, step by step.

    `without_sharing` is as if every row read its whole context alone; `saved` of these bytes
    are in partitions that other rows of the same step read too, all but the first of them. Only
    layers without a window read together.
    """

    def __init__(
        self, bytes_read: Mapping[int | None, int], *, shared_prefix_attention: bool = True
    ) -> None:
        """Count for layers that read so many bytes of a token, by their window, None for full
        attention."""
        self._bytes_read = bytes_read
        self._bytes_together = bytes_read.get(None, 0) if shared_prefix_attention else 0
        self._common = np.zeros(0, dtype=np.int32)
        self._last_read_once = 0
        self._places: Int64s = np.zeros(0, dtype=np.int64)
        self._saved_before = 0
        self.without_sharing = 0
        self.saved = 0

    def append(self, common: NDArray[np.int32], num_read_once_tokens: NDArray[np.int32]) -> None:
        """Add a window to the run order: what each row has in common with the one before, and what
        of it is read together with others.
        """
        common = np.minimum(common, num_read_once_tokens)
        common[:1] = np.minimum(common[:1], self._last_read_once)
        self._common = np.concatenate([self._common, common])
        if len(num_read_once_tokens):
            self._last_read_once = int(num_read_once_tokens[-1])

    def note(self, step: StepInput, places: Int64s) -> None:
        """Count one step; `places` are the chunks' rows in run order.

        A chunk of a prompt reads its context once, each generated token reads it again.
        """
        starts, ends = step.starts, step.ends
        borders = np.clip(step.num_prompt_tokens, starts, ends)
        is_prefill = starts < borders
        for window, num_bytes in self._bytes_read.items():
            read = read_by_chunks(starts[is_prefill], borders[is_prefill], window)
            self.without_sharing += num_bytes * (read + read_by_tokens(borders, ends, window))
        if self._bytes_together:
            num_tokens = ends - borders
            prefixes = step.num_read_once_tokens
            self._save(np.repeat(places, num_tokens), np.repeat(prefixes, num_tokens), 1)

    def note_decoding(
        self, stored: Int64s, places: Int64s, prefixes: Int64s, num_steps: int
    ) -> None:
        """Count steps in which the same rows each decode one token.

        Of each row, stored: its tokens before. places: where it is in run order. prefixes: its
        leading tokens that it reads together with others.
        """
        starts = stored
        for window, num_bytes in self._bytes_read.items():
            read = read_by_tokens(starts, starts + num_steps, window)
            self.without_sharing += num_bytes * read
        if self._bytes_together:
            self._save(places, prefixes, num_steps)

    def _save(self, rows: Int64s, prefixes: Int64s, num_steps: int) -> None:
        """Count the bytes of partitions that are read for a row before, in steps that are alike.

        rows: [num_tokens] int64, the place of each token's row. prefixes: [num_tokens] int64.
        """
        if len(rows) < 2:
            return
        places, first, counts = np.unique(rows, return_index=True, return_counts=True)
        if not np.array_equal(places, self._places):
            shared = common_with_previous(self._common, places) // PARTITION_TOKENS
            self._places, self._saved_before = places, int(shared.sum())
        # Samples of one row share all whole partitions of its prompt.
        partitions = prefixes[first] // PARTITION_TOKENS
        again = int(((counts - 1) * partitions).sum())
        tokens = (self._saved_before + again) * PARTITION_TOKENS
        self.saved += tokens * num_steps * self._bytes_together


def read_by_chunks(starts: Int64s, ends: Int64s, window: int | None) -> int:
    """Return the tokens that prompt tokens `[start, end)`, each chunk at once, read in a layer."""
    seen = ends
    if window is not None:
        # The chunk itself, and what the first of it sees before it.
        seen = np.minimum(ends, ends - starts + window - 1)
    return int(seen.sum())


def read_by_tokens(starts: Int64s, ends: Int64s, window: int | None) -> int:
    """Return the tokens that tokens at positions `[start, end)`, one by one, read in a layer.

    The one at position p reads p + 1, or the window where that is less.
    """
    num_tokens = ends - starts
    # Those whose context fits into the window are the first ones.
    num_whole = num_tokens if window is None else np.clip(window - starts, 0, num_tokens)
    read = num_whole * (2 * starts + num_whole + 1) // 2
    if window is not None:
        read = read + (num_tokens - num_whole) * window
    return int(read.sum())
