"""Foresight: how much memory running sequences will come to need, from what others needed.

Prompt lengths and token limits are known before a run; how long answers get is learnt from those
that are finished. A row is let in if the pool is expected to hold everybody until they end. (The
idea of looking at the moments at which sequences end, and not at the sum of all their maxima, is
that of R. Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", 2025.)
"""

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.scheduling.sequence import Sequence

MIN_LENGTHS = 4  # answers from which a group's own experience counts
MAX_LENGTHS = 256  # answers remembered for each group
MAX_GROUPS = 4096
MAX_MOMENTS = 32  # ends of sequences at which the pool is looked at
CAUTION = 0.7  # the share of answers that are shorter than what is reckoned with


@dataclass(slots=True)
class _Lengths:
    """The last answers' lengths, in order of time and of size."""

    recent: deque[int] = field(default_factory=deque)
    ordered: list[int] = field(default_factory=list)

    def add(self, length: int) -> None:
        insort(self.ordered, length)
        self.recent.append(length)
        if len(self.recent) > MAX_LENGTHS:
            del self.ordered[bisect_right(self.ordered, self.recent.popleft()) - 1]

    def beyond(self, length: int) -> int | None:
        """Return the length to reckon with of an answer that is longer than `length`."""
        longer = bisect_right(self.ordered, length)
        count = len(self.ordered) - longer
        return self.ordered[longer + int(CAUTION * count)] if count else None


class Foresight:
    """Learns from finished sequences; says whether another one may run beside those that do."""

    def __init__(self) -> None:
        self._all = _Lengths()
        self._groups: OrderedDict[tuple[int, int], _Lengths] = OrderedDict()

    def learn(self, sequence: Sequence) -> None:
        """Remember how long a finished answer became."""
        length = len(sequence.output_token_ids)
        self._all.add(length)
        lengths = self._groups.setdefault(sequence.group, _Lengths())
        lengths.add(length)
        self._groups.move_to_end(sequence.group)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def expected_output(self, sequence: Sequence) -> int:
        """Return how many tokens the answer is expected to have in the end.

        What most of its group's longer answers had; of the whole run's while the group has too
        few; at most `max_tokens`, which also stands where nothing is known yet. An answer longer
        than all before is expected to grow by half.
        """
        done = len(sequence.output_token_ids)
        limit = sequence.request.params.max_tokens
        lengths = self._groups.get(sequence.group)
        if lengths is None or len(lengths.ordered) < MIN_LENGTHS:
            lengths = self._all
        if len(lengths.ordered) < MIN_LENGTHS:
            return limit
        expected = lengths.beyond(done)
        return min(limit, done + done // 2 + 1 if expected is None else expected)

    def allows(
        self, pool: BlockPool, running: Seq[Sequence], candidate: Sequence, num_taken: int
    ) -> bool:
        """Return whether `candidate`, which takes `num_taken` free blocks now, may join.

        True if everybody can grow to the full length, or, by what is expected, nobody will find
        the pool dry before one that ends gives back blocks.
        """
        members = [*running, candidate]
        size = pool.block_size
        tokens = np.array([s.num_tokens for s in members])
        samples = np.array([len(s.pending_samples) for s in members])
        done = np.array([len(s.output_token_ids) for s in members])
        limits = np.array([s.request.params.max_tokens for s in members]) - 1
        # Blocks held by now; the candidate holds those of its prompt once it is let in.
        blocks = np.array([max(len(s.block_table), -(-s.num_tokens // size)) for s in members])
        free = pool.num_free - num_taken

        def growth(steps: np.ndarray) -> np.ndarray:
            """Return the blocks that each needs beyond its own after so many more tokens."""
            full = tokens // size
            own = -(-(tokens + np.maximum(steps, 0)) // size) - full
            return np.asarray(np.maximum(own * samples + full - blocks, 0))

        if int(growth(limits - done).sum()) <= free:
            return True
        expected = np.array([self.expected_output(s) for s in members])
        left = np.minimum(np.maximum(expected - done, 1), np.maximum(limits - done, 0))
        shared = np.array([s.num_shared_tokens for s in members]) // size
        given_back = np.maximum(blocks - np.minimum(shared, tokens // size), 0)
        moments = np.unique(left)
        if len(moments) > MAX_MOMENTS:
            moments = moments[np.linspace(0, len(moments) - 1, MAX_MOMENTS).astype(int)]
        for moment in moments:
            ended = left < moment
            needed = np.where(ended, -given_back, growth(np.minimum(left, moment)))
            if int(needed.sum()) > free:
                return False
        return True
