"""ReplicaWorker: an engine that runs the units it is given, whoever carries them."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Protocol

from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.planning.planner import PartPlanner
from pagedrun.paged.planning.windows import PlannedFeed
from pagedrun.paged.replicas.replica_events import Begun, Ended, Failed, Offered, ReplicaEvent
from pagedrun.paged.replicas.replica_offer import ReplicaOffer
from pagedrun.paged.replicas.run_terms import RunTerms
from pagedrun.paged.replicas.worker.outbox import Outbox
from pagedrun.paged.report.record.report_sections import EngineReport
from pagedrun.paged.report.record.snapshot import Snapshot
from pagedrun.paged.report.record.timeline import StepRecord
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
