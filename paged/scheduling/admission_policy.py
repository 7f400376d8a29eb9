"""Policies of admission: by expected memory, by the share of ended sequences, by time left.

Prompt lengths and token limits are known before a run; `OutputLengthPredictor` learns the
lengths of answers from finished ones. A row is admitted if the pool is expected to hold all
running sequences until they end. The idea of looking at the moments at which sequences end, and
not at the sum of their maximum lengths, is that of R. Gong et al., "Past-Future Scheduler for
LLM Serving under SLA Guarantees", 2025.

A row that a deadline cuts off is lost, and long ones are lost more often, so that the finished
rows would not be a fair sample. `AdmissionDeadline` therefore stops admission while there is still
time for the last rows.
"""

import math
import time
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.values.request import Request

MIN_LENGTHS = 4  # answers of a group from which they are used
MAX_LENGTHS = 256  # answers remembered for each group
MAX_GROUPS = 4096
MOST_BEHIND = 8  # steps by which a sequence may begin late without delaying those behind it
MAX_MOMENTS = 32  # ends of sequences at which the use of the pool is predicted
CAUTION = 0.7  # share of answers that are shorter than the expected length


@dataclass(slots=True)
class _Lengths:
    """Lengths of the last answers, by time and by size."""

    recent: deque[int] = field(default_factory=deque)
    ordered: list[int] = field(default_factory=list)

    def add(self, length: int) -> None:
        insort(self.ordered, length)
        self.recent.append(length)
        if len(self.recent) > MAX_LENGTHS:
            del self.ordered[bisect_right(self.ordered, self.recent.popleft()) - 1]

    def beyond(self, lengths: Int64s) -> Int64s:
        """Return the expected final lengths of answers longer than each of `lengths`.

        An answer longer than all before is expected to grow by half.
        """
        ordered = np.array(self.ordered, dtype=np.int64)
        longer = np.searchsorted(ordered, lengths, side="right")
        count = len(ordered) - longer
        place = np.minimum(longer + (CAUTION * count).astype(np.int64), len(ordered) - 1)
        return np.where(count > 0, ordered[place], lengths + lengths // 2 + 1)


class OutputLengthPredictor:
    """Predicts output lengths from finished sequences, and decides on admission by them."""

    def __init__(self) -> None:
        self._all = _Lengths()
        self._groups: OrderedDict[int, _Lengths] = OrderedDict()

    def learn(self, sequence: Sequence) -> None:
        """Record the length of a finished answer."""
        length = sequence.num_output_tokens
        self._all.add(length)
        lengths = self._groups.setdefault(sequence.group, _Lengths())
        lengths.add(length)
        self._groups.move_to_end(sequence.group)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def knows(self, table: SequenceTable, row_index: int) -> bool:
        """Return whether an answer will have `max_tokens` tokens, whatever they are."""
        may_stop = table.has_stops[row_index] or table.stop_token_ids[row_index]
        return bool(table.ignores_eos[row_index]) and not may_stop

    def expected_outputs(self, table: SequenceTable, row_indices: Int64s) -> Int64s:
        """Return the expected final length of each answer.

        Most longer answers of its group were no longer; while the group has too few, those of the
        whole run are used; at most `max_tokens`, which is also the value before any answer is
        known.
        """
        limits = table.max_tokens[row_indices]
        if len(self._all.ordered) < MIN_LENGTHS:
            return limits
        done = table.num_output_tokens[row_indices]
        expected = self._all.beyond(done)
        groups, group_of = np.unique(table.group[row_indices], return_inverse=True)
        for number, group in enumerate(groups.tolist()):
            lengths = self._groups.get(group)
            if lengths is not None and len(lengths.ordered) >= MIN_LENGTHS:
                own = group_of == number
                expected[own] = lengths.beyond(done[own])
        return np.minimum(limits, expected)

    def allows(
        self, pool: BlockPool, table: SequenceTable, row_indices: Int64s, num_taken: int
    ) -> bool:
        """Return whether the last of these sequences, which takes `num_taken` free blocks now, may
        join the others.

        True if all sequences can grow to full length or, by the expected lengths, no sequence will
        run out of blocks before one that ends frees some.
        """
        size = pool.block_size
        tokens = table.num_tokens(row_indices)
        samples = table.num_pending[row_indices] * np.maximum(table.num_beams[row_indices], 1)
        done = table.num_output_tokens[row_indices]
        limits = table.max_tokens[row_indices] - 1
        # Blocks held now; the candidate holds those of its prompt once it is admitted.
        blocks = np.maximum(table.kv_groups[0].ends[row_indices], -(-tokens // size))
        free = pool.num_free - num_taken
        full = tokens // size

        def growth(steps: Int64s) -> Int64s:
            """Return the blocks that each needs beyond its own after `steps` more tokens."""
            own = -(-(tokens + np.maximum(steps, 0)) // size) - full
            beyond: Int64s = np.maximum(own * samples + full - blocks, 0)
            return beyond

        if int(growth(limits - done).sum()) <= free:
            return True
        expected = self.expected_outputs(table, row_indices)
        left = np.minimum(np.maximum(expected - done, 1), np.maximum(limits - done, 0))
        shared = table.num_shared_tokens[row_indices] // size
        given_back = np.maximum(blocks - np.minimum(shared, full), 0)
        moments = np.unique(left)
        if len(moments) > MAX_MOMENTS:
            moments = moments[np.linspace(0, len(moments) - 1, MAX_MOMENTS).astype(int)]
        until = moments[:, None]
        needed = np.where(left < until, -given_back, growth(np.minimum(left, until)))
        return bool((needed.sum(axis=1) <= free).all())


class Stagger:
    """Delays sequences of a known length, so that they begin and end one after another.

    Sequences that begin together have their full lengths together: the pool must have room for all
    of them then, and is half empty before. Begun at even distances they have all lengths at any
    time, and up to twice as many run at once. The first run with few others, so that this pays if
    many follow; that is decided once.
    """

    def __init__(self, max_num_seqs: int, predictor: OutputLengthPredictor) -> None:
        """max_num_seqs: sequences that may run at once."""
        self._max_num_seqs = max_num_seqs
        self._predictor = predictor
        self._num_steps = 0
        self._next = 0.0  # the step from which a sequence may begin
        self._is_used: bool | None = None

    def note_steps(self, count: int) -> None:
        """Count steps."""
        self._num_steps += count

    def delays(self, sequence: Sequence, pool: BlockPool, num_behind: int) -> bool:
        """Return whether a sequence must wait; otherwise it begins, unless the pool is full.

        num_behind: sequences planned behind it.
        """
        table, row = sequence.table, sequence.row_index
        is_single = table.num_pending[row] == 1 and not table.num_beams[row]
        if self._is_used is False or not is_single or sequence.num_preemptions:
            return False
        if not self._predictor.knows(table, row):
            return False
        length = int(table.max_tokens[row])
        own = sequence.num_tokens - int(table.num_shared_tokens[row])
        room = pool.num_blocks * pool.block_size
        together = min(room / (own + length), self._max_num_seqs)
        in_turn = min(room / (own + length / 2), self._max_num_seqs)
        if self._is_used is None:
            self._is_used = num_behind / in_turn + 1 < num_behind / together
        if not self._is_used:
            return False
        if self._num_steps < self._next:
            return True
        self._next = max(self._next, self._num_steps - MOST_BEHIND) + length / in_turn
        return False


class Refill:
    """Admits sequences in groups, when enough of the running ones have ended.

    A step that begins sequences computes prompts beside the tokens of the others, and costs a
    device that replays captured steps more than one that does not. So once no more could be
    admitted, for lack of batch slots or memory, the next ones wait until a share of the sequences
    running then has ended.
    """

    def __init__(self, share: float) -> None:
        """share: 0 to 1; 0 admits sequences at once."""
        self._share = share
        self._num_full = 0  # running sequences when no more could join

    def is_open(self, num_running: int) -> bool:
        """Return whether sequences may join `num_running` others; always true without any."""
        self._num_full = max(self._num_full, num_running) if self._num_full else 0
        if not self._num_full or not num_running:
            return True
        return self._num_full - num_running >= math.ceil(self._share * self._num_full)

    def open(self) -> None:
        """Record that sequences are being admitted, now and in the next steps."""
        self._num_full = 0

    def close(self, num_running: int) -> None:
        """Record that no sequence can join `num_running` others."""
        self._num_full = num_running


MOST_DURATIONS = 256  # of the rows that finished last
QUANTILE = 0.9  # of the durations, as that of the last rows


class RequestListener(Protocol):
    """Listener to the begin and end of each request of a run."""

    def begin(self, request: Request) -> None:
        """Handle the admission of a request."""

    def end(self, row: int) -> None:
        """Handle the completion of a request, by its index."""


class AdmissionDeadline:
    """Latest time of admission, estimated from the durations of finished rows.

    Without a deadline (`at` is None) admission is never over.
    """

    def __init__(self, at: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """at: end of the run on `clock`, in seconds."""
        self._at = at
        self._clock = clock
        self._begun: dict[int, float] = {}
        self._durations: deque[float] = deque(maxlen=MOST_DURATIONS)
        self._needed_s = 0.0  # by a row that begins now
        self._is_learnt = True

    def begin(self, request: Request) -> None:
        """Record the admission of a request."""
        if self._at is not None:
            self._begun[request.index] = self._clock()

    def end(self, row: int) -> None:
        """Record the completion of a request."""
        began = self._begun.pop(row, None)
        if began is not None:
            self._durations.append(self._clock() - began)
            self._is_learnt = False

    @property
    def is_over(self) -> bool:
        """True if too little time is left for another row."""
        if self._at is None:
            return False
        if not self._is_learnt:
            ranked = sorted(self._durations)
            self._needed_s = ranked[int(QUANTILE * (len(ranked) - 1))]
            self._is_learnt = True
        return self._clock() + self._needed_s >= self._at
