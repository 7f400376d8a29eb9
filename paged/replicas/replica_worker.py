"""ReplicaWorker: runs the units that a replica receives, independent of the transport.

The engine computes in a thread of its own. Its `Outbox` packs finished rows into packets and sends
a tick a second in between.
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
from pagedrun.paged.planning.windows import WindowQueue
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
    """All rows of the job are answered."""


class PartRun(Protocol):
    """Part of the interface of `Run` that a replica uses."""

    is_cut: bool

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion for each request."""

    def report(self) -> EngineReport:
        """Return the memory report."""

    def snapshot(self) -> Snapshot | None:
        """Return the block history, None for a run without blocks."""


class PartEngine(Protocol):
    """Loaded engine that runs parts of plans."""

    def offer(self) -> ReplicaOffer:
        """Return the offer of the replica."""

    def start(
        self, feed: WindowQueue, terms: RunTerms, on_step: Callable[[StepRecord], None]
    ) -> PartRun:
        """Return the run of the units in the feed."""


class ReplicaWorker:
    """Loads an engine in its own thread, offers it, and runs units until there are no more.

    The methods may be called from any thread and do not block. `events` is iterated once.
    """

    def __init__(self, load: Callable[[], PartEngine], node: str = "") -> None:
        """load: loads the engine; called in the thread that then computes."""
        self._load = load
        self._node = node
        self._outbox = Outbox()
        self._feed = WindowQueue(self._outbox.flush, self._note_begun)
        self._parts = PartPlanner()
        self._numbers: deque[int] = deque()  # of the units in the feed
        self._terms: SimpleQueue[RunTerms] = SimpleQueue()
        self._is_planning = Lock()
        self._is_over = Event()
        self._thread = Thread(target=self._work, name="replica", daemon=True)

    def events(self) -> Iterator[ReplicaEvent]:
        """Start, and yield events, at least one a second."""
        self._thread.start()
        return self._outbox.events()

    def begin(self, terms: RunTerms) -> None:
        """Set the terms; called once, before the first unit."""
        self._terms.put(terms)

    def feed(self, number: int, part: PlanPart) -> None:
        """Append a unit, by its number."""
        with self._is_planning:
            window = self._parts.window(part)
            self._numbers.append(number)
            self._feed.put(window)

    def end(self) -> None:
        """Stop after the current step: no unit follows, and open rows are no longer needed."""
        self._is_over.set()
        self._feed.end()

    def fail(self, message: str) -> None:
        """Report that the process is about to end."""
        self._outbox.put(Failed(message, node=self._node))

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
            message = f"{type(error).__name__}: {error}"
            self._outbox.put(Failed(message, node=self._node))


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

    # ── Called in the thread of the run ─────────────────────────────────────────────────────────

    def add(self, completion: Completion) -> None:
        """Add a finished row."""
        if not self._packet:
            self._begun = self._clock()
        self._packet.append(completion)
        self._num_bytes += _num_bytes(completion)
        if self._num_bytes >= PACKET_BYTES:
            self.flush()

    def note_step(self, record: StepRecord) -> None:
        """Set the state after a step; send rows that have waited `PACKET_SECONDS`."""
        self._record = record
        if self._packet and self._clock() - self._begun >= PACKET_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the packed rows."""
        if self._packet:
            self._queue.put(Answered(tuple(self._packet), self._record))
            self._packet, self._num_bytes = [], 0

    def put(self, event: ReplicaEvent) -> None:
        """Send an event after the packed rows."""
        self.flush()
        self._queue.put(event)

    # ── Called in another thread ────────────────────────────────────────────────────────────────

    def events(self) -> Iterator[ReplicaEvent]:
        """Yield events, and a tick a second, until the replica has ended."""
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
    """Return the approximate size of a packed completion in bytes."""
    num_bytes = 512
    for output in completion.outputs:
        num_bytes += len(output.text) + 8 * len(output.token_ids)
        num_bytes += 256 * len(output.logprobs or ())
    if completion.pooled is not None:
        num_bytes += completion.pooled.nbytes
    return num_bytes + 256 * len(completion.prompt_logprobs or ()) + 256 * len(completion.scores)
