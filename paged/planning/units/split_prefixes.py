"""SplitPrefixes: what is computed again because the rows of a prefix are in several units."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


class SplitPrefixes:
    """Counts the tokens of prefixes that replicas compute again, at most.

    A prefix with rows in several units is computed once by each replica that takes one of them: a
    replica's units come in the order of the plan, and it keeps what the last row of a unit may have
    in common with the next one. So a prefix is computed again for each of its units but the first,
    and no more often than there are other replicas. How often in fact depends on who is ready when,
    which no plan can say; where each replica takes a unit of each split prefix it is this number.
    Rows that are run twice, because a replica died or was slow, are not in it.
    """

    def __init__(self, num_replicas: int, block_size: int = 1) -> None:
        """Count whole blocks of so many tokens."""
        self._most = num_replicas - 1
        self._block_size = block_size
        self._num_closed = 0
        self._least: int | None = None  # in common since the last cut; None before the first unit
        # From the outside in: from which token, up to which, how many cuts it spans.
        self._path: list[tuple[int, int, int]] = []

    def add(self, common: NDArray[np.int32], cuts: NDArray[np.int64]) -> None:
        """Add a window, behind those before.

        common: [num_rows] int32, tokens that each row has in common with the one before, the first
        with the last of the window before. cuts: [num_units + 1] int64, see `unit_cuts`.
        """
        for begin, end in pairwise(cuts.tolist()):
            if self._least is not None:
                self._cut(min(self._least, int(common[begin])), int(common[begin]))
            self._least = int(common[begin + 1 : end].min(initial=np.iinfo(np.int32).max))

    @property
    def num_tokens(self) -> int:
        """The tokens that are computed again, at most."""
        return self._num_closed + sum(
            (end - start) * min(num_cuts, self._most) for start, end, num_cuts in self._path
        )

    def _cut(self, least: int, shared: int) -> None:
        """Count a cut between rows with `shared` tokens in common; `least` are those that all rows
        since the cut before have."""
        size = self._block_size
        least, shared = least // size * size, shared // size * size
        kept: list[tuple[int, int, int]] = []
        for start, end, num_cuts in self._path:
            if start < least:
                kept.append((start, min(end, least), num_cuts + 1))
            self._num_closed += max(end - max(start, least), 0) * min(num_cuts, self._most)
        known = kept[-1][1] if kept else 0
        self._path = [*kept, (known, shared, 1)] if shared > known else kept
