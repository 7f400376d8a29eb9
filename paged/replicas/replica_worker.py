"""ReplicaWorker: runs the units that a replica receives, independent of the transport.

The engine computes in a thread of its own. Its `Outbox` packs finished rows into packets and
sends a tick a second in between.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Protocol

from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.planning.planner import PartPlanner
from pagedrun.paged.planning.windows import PlannedFeed
from pagedrun.paged.replicas.replica_messages import (
    Answered,
    Begun,
    Ended,
    Failed,
    Offered,
    ReplicaEvent,
    ReplicaOffer,
    RunTerms,
    Tick,
)
from pagedrun.paged.values.errors import PagedrunError, UsageError
from pagedrun.paged.values.request import Completion


class _NoMoreWanted(Exception):
    """Every row of the job is answered."""


class PartRun(Protocol):
    """The part of `Run` that a replica reads."""

    is_cut: bool

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion for each request."""

    def report(self) -> EngineReport:
        """Return what happened."""

    def snapshot(self) -> Snapshot:
        """Return what became of every block of the pool."""


class PartEngine(Protocol):
    """A loaded engine that takes parts of plans."""

    def offer(self) -> ReplicaOffer:
        """Return what it says of itself."""

    def start(
        self, feed: PlannedFeed, terms: RunTerms, on_step: Callable[[StepRecord], None]
    ) -> PartRun:
        """Return the run of what is in the feed."""


class ReplicaWorker:
    """Loads an engine in a thread of its own, offers it, and runs units until there are no more.

    The other methods may be called from any thread; none of them waits. `events` is iterated once.
    """

    def __init__(self, load: Callable[[], PartEngine], node: str = "") -> None:
        """load: reads the weights; called in the thread that then computes."""
        self._load = load
        self._node = node
        self._outbox = Outbox()
        self._feed = PlannedFeed(self._outbox.flush, self._note_begun)
        self._parts = PartPlanner()
        self._numbers: deque[int] = deque()  # of the units in the feed
        self._terms: SimpleQueue[RunTerms] = SimpleQueue()
        self._is_planning = Lock()
        self._is_over = Event()
        self._thread = Thread(target=self._work, name="replica", daemon=True)

    def events(self) -> Iterator[ReplicaEvent]:
        """Begin, and yield what there is to tell, at least once a second."""
        self._thread.start()
        return self._outbox.events()

    def begin(self, terms: RunTerms) -> None:
        """Take the terms; called once, before the first unit."""
        self._terms.put(terms)

    def feed(self, number: int, part: PlanPart) -> None:
        """Take a unit, by its number, to be run behind those before."""
        with self._is_planning:
            window = self._parts.window(part)
            self._numbers.append(number)
            self._feed.put(window)

    def end(self) -> None:
        """Take note that no unit follows, and that nobody waits for rows that are not done."""
        self._is_over.set()
        self._feed.end()

    def _note_step(self, record: StepRecord) -> None:
        self._outbox.note_step(record)
        if self._is_over.is_set():
            raise _NoMoreWanted

    def _note_begun(self) -> None:
        self._outbox.put(Begun(self._numbers.popleft()))

    def _work(self) -> None:
        try:
            engine = self._load()
            self._outbox.put(Offered(engine.offer()))
            run = engine.start(self._feed, self._terms.get(), self._note_step)
            with suppress(_NoMoreWanted):
                for completion in run:
                    self._outbox.add(completion)
            self._outbox.put(Ended(run.report(), run.snapshot(), run.is_cut))
        except PagedrunError as error:
            is_usage = isinstance(error, UsageError)
            self._outbox.put(Failed(error.marked, is_usage=is_usage, node=self._node))
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
            self._outbox.put(Failed(told, node=self._node))


PACKET_BYTES = 64 * 1024  # small enough to travel inside a reply
PACKET_SECONDS = 0.05
TICK_SECONDS = 1.0


class Outbox:
    """Packs finished rows, `PACKET_BYTES` or `PACKET_SECONDS` of them at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue: SimpleQueue[ReplicaEvent] = SimpleQueue()
        self._packet: list[Completion] = []
        self._num_bytes = 0
        self._begun = 0.0
        self._record: StepRecord | None = None

    # ── Written by the thread that runs ─────────────────────────────────────────────────────────

    def add(self, completion: Completion) -> None:
        """Take a finished row."""
        if not self._packet:
            self._begun = self._clock()
        self._packet.append(completion)
        self._num_bytes += _num_bytes(completion)
        if self._num_bytes >= PACKET_BYTES:
            self.flush()

    def note_step(self, record: StepRecord) -> None:
        """Take the state after a step; send what has waited long enough."""
        self._record = record
        if self._packet and self._clock() - self._begun >= PACKET_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the rows that there are."""
        if self._packet:
            self._queue.put(Answered(tuple(self._packet), self._record))
            self._packet, self._num_bytes = [], 0

    def put(self, event: ReplicaEvent) -> None:
        """Send something else, behind the rows that there are."""
        self.flush()
        self._queue.put(event)

    # ── Read by another one ─────────────────────────────────────────────────────────────────────

    def events(self) -> Iterator[ReplicaEvent]:
        """Yield what was sent, and a tick a second, until the replica has ended."""
        tick_at = self._clock() + TICK_SECONDS
        while True:
            try:
                event = self._queue.get(timeout=max(tick_at - self._clock(), 0))
            except Empty:
                tick_at = self._clock() + TICK_SECONDS
                event = Tick(self._record)
            yield event
            if isinstance(event, Ended | Failed):
                return


def _num_bytes(completion: Completion) -> int:
    """Return about how many bytes a completion takes when it travels."""
    num_bytes = 512
    for output in completion.outputs:
        num_bytes += len(output.text) + 8 * len(output.token_ids)
        num_bytes += 256 * len(output.logprobs or ())
    return num_bytes + 256 * len(completion.prompt_logprobs or ()) + 256 * len(completion.scores)
