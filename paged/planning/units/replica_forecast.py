"""ReplicaForecast: what a file comes to that several replicas run."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.preview.forecast_sections import ReplicaFigures
from pagedrun.paged.planning.tree.run_order import PROMPT_TOKENS_A_NEW_ONE, USUAL_ANSWER
from pagedrun.paged.planning.units.split_prefixes import SplitPrefixes
from pagedrun.paged.planning.units.unit_cuts import unit_cuts

_ALL = np.iinfo(np.int32).max


class ReplicaForecast:
    """Cuts the windows of a file as a run does, and hands the units to replicas on paper.

    All replicas are equally fast there, each row takes what it computes, answers are no longer than
    the usual one, and whoever has worked least takes the next unit. What is left out: that a model
    is loaded, that the last rows of a replica run in a small batch, and idle replicas that take
    rows of others.
    """

    def __init__(self, num_replicas: int, block_size: int, *, prefix_caching: bool) -> None:
        self._num_replicas = num_replicas
        self._prefix_caching = prefix_caching
        self._split = SplitPrefixes(num_replicas, block_size)
        self._num_units = 0
        self._computed = 0  # prompt tokens by one replica, if parts of blocks are never copied
        self._work = 0  # of one replica that runs all
        self._busy = np.zeros(num_replicas, dtype=np.int64)
        # What each has in common with the next row; none has run anything.
        self._has = np.zeros(num_replicas, dtype=np.int64)

    def add(self, plan: Plan, *, has_next: bool) -> None:
        """Count a window; has_next: whether the file has, or may have, windows after the first."""
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

    def _take(self, common: NDArray[np.int32], work: int) -> None:
        """Let the replica that has worked least take the next unit."""
        has = np.minimum(self._has, common[0])
        replica = int(self._busy.argmin())
        self._busy[replica] += work + int(common[0] - has[replica])
        self._has = np.minimum(has, common[1:].min(initial=_ALL))
        self._has[replica] = _ALL
