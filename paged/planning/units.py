"""Units: pieces of a plan's run order that replicas take when they have room.

Large units avoid computing prefixes again, and small units at the end let all replicas finish
at about the same time: guided self-scheduling (Polychronopoulos and Kuck, 1987). Each unit has a
share of the remaining rows. Near the wanted size, the cut is made between the rows that have
least in common.

`SplitPrefixes` counts the prefix tokens that are computed again because of the cuts;
`ReplicaForecast` estimates the efficiency of several replicas.
"""

from itertools import pairwise

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.planning.forecast_sections import ReplicaFigures
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.prefix_tree import PROMPT_TOKENS_A_NEW_ONE, USUAL_ANSWER

# Limits of the rows of a unit; the last ones of a window may have fewer.
LEAST_ROWS, MOST_ROWS = 64, 4096
# A unit is the number of remaining rows divided by this number for each replica.
SHARES_A_REPLICA = 4
# Largest deviation of a unit from its size, as a share of it.
NEAR = 0.25


def unit_cuts(common: Int32s, num_replicas: int, *, has_next: bool = False) -> Int64s:
    """Return the borders of the units, [num_units + 1] int64: 0 first, the number of rows last.

    common: [num_rows] int32, tokens that each row has in common with the one before. has_next:
    another window follows, so that no replica will be idle at the end of this one: units then do
    not get smaller. A function of the plan alone, hence equal in every process.
    """
    num_rows = len(common)
    cuts = [0]
    while (left := num_rows - cuts[-1]) > 0:
        size = (num_rows if has_next else left) // (SHARES_A_REPLICA * num_replicas)
        size = min(max(size, LEAST_ROWS), MOST_ROWS)
        cuts.append(num_rows if left <= size * (1 + NEAR) else _end_near(common, cuts[-1], size))
    return np.array(cuts, dtype=np.int64)


def _end_near(common: Int32s, begin: int, size: int) -> int:
    """Return the best end of a unit of about `size` rows: of equal ones the nearest."""
    reach = int(size * NEAR)
    first = begin + size - reach
    near = common[first : begin + size + reach + 1]
    (best,) = np.nonzero(near == near.min())
    return first + int(best[np.argmin(np.abs(best - reach))])


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
        """Count whole blocks of `block_size` tokens."""
        self._most = num_replicas - 1
        self._block_size = block_size
        self._num_closed = 0
        self._least: int | None = None  # in common since the last cut; None before the first unit
        # Nested prefixes, outermost first: first token, end, number of cuts spanned.
        self._path: list[tuple[int, int, int]] = []

    def add(self, common: Int32s, cuts: Int64s) -> None:
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
        """Upper bound of the tokens that are computed again."""
        return self._num_closed + sum(
            (end - start) * min(num_cuts, self._most) for start, end, num_cuts in self._path
        )

    def _cut(self, least: int, shared: int) -> None:
        """Count a cut between rows with `shared` tokens in common; `least` tokens are common to all
        rows since the cut before."""
        size = self._block_size
        least, shared = least // size * size, shared // size * size
        kept: list[tuple[int, int, int]] = []
        for start, end, num_cuts in self._path:
            if start < least:
                kept.append((start, min(end, least), num_cuts + 1))
            self._num_closed += max(end - max(start, least), 0) * min(num_cuts, self._most)
        known = kept[-1][1] if kept else 0
        self._path = [*kept, (known, shared, 1)] if shared > known else kept


_ALL = np.iinfo(np.int32).max


class ReplicaForecast:
    """Cuts the windows of a file as a run does, and simulates their replicas.

    All replicas are equally fast, a row costs the tokens it computes, answers have at most the
    usual length, and the replica with the least work takes the next unit. Not simulated: loading of
    the model, small batches of the last rows of a replica, and idle replicas that take rows of
    others.
    """

    def __init__(self, num_replicas: int, block_size: int, *, prefix_caching: bool) -> None:
        self._num_replicas = num_replicas
        self._prefix_caching = prefix_caching
        self._split = SplitPrefixes(num_replicas, block_size)
        self._num_units = 0
        self._computed = 0  # prompt tokens by one replica, if parts of blocks are never copied
        self._work = 0  # of one replica that runs all
        self._busy = np.zeros(num_replicas, dtype=np.int64)
        # Tokens that each has in common with the next row; none has run anything.
        self._has = np.zeros(num_replicas, dtype=np.int64)

    def add(self, plan: Plan, *, has_next: bool) -> None:
        """Count a window; has_next: the file has, or may have, windows after the first."""
        tree = plan.tree
        common = tree.common if self._prefix_caching else np.zeros_like(tree.common)
        cuts = unit_cuts(common, self._num_replicas, has_next=has_next)
        self._num_units += len(cuts) - 1
        self._split.add(common, cuts)
        self._computed += int((tree.num_tokens - plan.num_hit_tokens).sum())
        answers = np.minimum(plan.max_tokens, USUAL_ANSWER) * plan.num_samples
        work = (tree.num_tokens - common).astype(np.int64) + PROMPT_TOKENS_A_NEW_ONE * answers
        self._work += int(work.sum())
        for begin, end in pairwise(cuts.tolist()):
            self._take(common[begin:end], int(work[begin:end].sum()))

    def figures(self) -> ReplicaFigures:
        """Return the figures of the windows so far."""
        again = self._split.num_tokens
        longest = int(self._busy.max())
        return {
            "count": self._num_replicas,
            "units": self._num_units,
            "split_prefix_tokens": again,
            "computed_at_most": self._computed + again,
            "expected_efficiency": (
                self._work / (self._num_replicas * longest) if longest else 1.0
            ),
        }

    def _take(self, common: Int32s, work: int) -> None:
        """Assign the next unit to the replica with the least work."""
        has = np.minimum(self._has, common[0])
        replica = int(self._busy.argmin())
        self._busy[replica] += work + int(common[0] - has[replica])
        self._has = np.minimum(has, common[1:].min(initial=_ALL))
        self._has[replica] = _ALL
