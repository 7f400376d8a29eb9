"""PrefixReads: the keys and values that attention reads, with and without reading prefixes once.

The engine learns from block tables which rows share a partition (`prefix_sharing`); the plan knows
it beforehand: rows in run order have in common what every row between them has.
"""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.scheduled_batch import ScheduledChunk

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
    """Tokens whose keys and values a layer with full attention reads, step by step.

    `without_sharing` is as if every row read its whole context alone; `saved` of these tokens
    are in partitions that other rows of the same step read too, all but the first of them.
    """

    def __init__(self) -> None:
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

    def note(self, chunks: Seq[ScheduledChunk], places: Seq[int]) -> None:
        """Count one step; `places` are the chunks' rows in run order.

        A chunk of a prompt reads its context once, each generated token reads it again.
        """
        decoding: list[tuple[int, int]] = []
        for chunk, place in zip(chunks, places, strict=True):
            prompt = chunk.sequence.num_prompt_tokens
            if chunk.start < prompt:
                self.without_sharing += min(chunk.end, prompt)
            for position in range(max(chunk.start, prompt), chunk.end):
                self.without_sharing += position + 1
                decoding.append((place, chunk.sequence.num_read_once_tokens))
        if len(decoding) > 1:
            self.saved += self._saved(decoding)

    def note_decoding(self, contexts: int, rows: Seq[tuple[int, int]], num_steps: int) -> None:
        """Count steps in which the same rows each decode one token.

        contexts: tokens of all contexts in all these steps. rows: place of each, and tokens
        that it reads together with others.
        """
        self.without_sharing += contexts
        if len(rows) > 1:
            self.saved += self._saved(rows) * num_steps

    def _saved(self, rows: Seq[tuple[int, int]]) -> int:
        """Return the tokens of partitions that are read for a row before, in one step."""
        array = np.array(rows, dtype=np.int64)
        places, first, counts = np.unique(array[:, 0], return_index=True, return_counts=True)
        if not np.array_equal(places, self._places):
            shared = common_with_previous(self._common, places) // PARTITION_TOKENS
            self._places, self._saved_before = places, int(shared.sum())
        # Samples of one row share all whole partitions of its prompt.
        partitions = array[first, 1] // PARTITION_TOKENS
        again = int(((counts - 1) * partitions).sum())
        return (self._saved_before + again) * PARTITION_TOKENS
