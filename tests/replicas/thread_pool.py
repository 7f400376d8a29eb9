"""Replicas that are threads, whose engines answer from a script."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Thread

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.metrics.recorder import Recorder
from pagedrun.paged.metrics.report_sections import EngineReport, empty_engine_report
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.planning.plan import PlanRules
from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.planning.planner import RequestLimits
from pagedrun.paged.planning.sizing import PlanBasis
from pagedrun.paged.planning.windows import WindowQueue
from pagedrun.paged.replicas.replica_messages import (
    Died,
    Heard,
    Placed,
    ReplicaEvent,
    ReplicaOffer,
    RunTerms,
)
from pagedrun.paged.replicas.replica_worker import PartEngine, ReplicaWorker
from pagedrun.paged.scheduling.scheduler_state import ResidencyLog
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput

MAX_MODEL_LEN, VOCAB_SIZE = 64, 200
CUT_AFTER = 50
BASIS = PlanBasis(
    RequestLimits(MAX_MODEL_LEN, VOCAB_SIZE),
    PlanRules(4, max_blocks=64, read_once=ReadOnce(4, 8)),
)
OnRow = Callable[[int, int], None]
"""Called with a replica's number and a row that it is about to answer."""


class Fatal(BaseException):
    """The process of a replica ends."""


def answer(planned: PlannedRequest) -> Completion:
    """Answer with what the plan has decided about the row, which nobody may decide otherwise."""
    request = planned.request
    text = f"{sum(request.prompt_token_ids)}:{planned.num_read_once_tokens}:{planned.place}"
    outputs = tuple(
        SampleOutput(sample, f"{text}:{sample}", (1, 2), FinishReason.LENGTH)
        for sample in range(request.params.n)
    )
    return Completion(request, outputs, num_read_once_tokens=planned.num_read_once_tokens)


class ScriptedRun:
    """Answers one row a step; where there is a deadline, that comes after `CUT_AFTER` rows."""

    def __init__(
        self,
        number: int,
        feed: WindowQueue,
        seconds_left: float | None,
        on_step: Callable[[StepRecord], None],
        on_row: OnRow,
    ) -> None:
        self.is_cut = False
        self._number = number
        self._feed = feed
        self._has_deadline = seconds_left is not None
        self._on_step = on_step
        self._on_row = on_row

    def __iter__(self) -> Iterator[Completion]:
        steps = 0
        for window in self._feed:
            for planned in window.plan:
                if self._has_deadline and steps == CUT_AFTER:
                    self.is_cut = True
                    return
                self._on_row(self._number, planned.request.index)
                yield answer(planned)
                steps += 1
                self._on_step(StepRecord(0.1, steps, 1, 0, 8, 1, 0, 0, 1, steps, steps, 3, 1, 2, 0))

    def report(self) -> EngineReport:
        return empty_engine_report()

    def snapshot(self) -> Snapshot:
        return Recorder(BlockPool(2, 16), ResidencyLog()).snapshot(bytes_per_token=8)


@dataclass
class ScriptedEngine:
    """Offers `basis` and `fingerprint`."""

    number: int
    on_row: OnRow = lambda number, row: None
    basis: PlanBasis = BASIS
    fingerprint: dict[str, str] = field(default_factory=lambda: {"weights": "a" * 64})

    def offer(self) -> ReplicaOffer:
        return ReplicaOffer(f"node-{self.number}", self.fingerprint, self.basis)

    def start(
        self, feed: WindowQueue, terms: RunTerms, on_step: Callable[[StepRecord], None]
    ) -> ScriptedRun:
        return ScriptedRun(self.number, feed, terms.seconds_left, on_step, self.on_row)


class ThreadPool:
    """Implements `ReplicaPool`. `has_room` says whether a replica gets a process at all."""

    def __init__(
        self,
        num_wanted: int,
        engine: Callable[[int], PartEngine] = ScriptedEngine,
        has_room: Callable[[int], bool] = lambda number: True,
    ) -> None:
        self.num_wanted = num_wanted
        self.num_added = 0
        self.is_closed = False
        self.killed: list[int] = []
        self._engine = engine
        self._has_room = has_room
        self._workers: dict[int, ReplicaWorker] = {}
        self._heard: SimpleQueue[Heard] = SimpleQueue()
        self._gone: set[int] = set()
        self._frozen: dict[int, Event] = {}

    def add(self) -> int:
        number = self.num_added
        self.num_added += 1
        if self._has_room(number):
            self.place(number)
        return number

    def place(self, number: int) -> None:
        """Give a replica that was asked for its process."""
        worker = ReplicaWorker(lambda: self._engine(number), f"node-{number}")
        self._workers[number] = worker
        Thread(target=self._read, args=(number, worker), daemon=True).start()

    def freeze(self, number: int) -> None:
        """Let nothing more be heard of a replica, which goes on."""
        self._frozen.setdefault(number, Event())

    def thaw(self, number: int) -> None:
        self._frozen[number].set()

    def begin(self, replica: int, terms: RunTerms) -> None:
        self._workers[replica].begin(terms)

    def feed(self, replica: int, number: int, part: PlanPart) -> None:
        self._workers[replica].feed(number, part)

    def end(self, replica: int) -> None:
        self._workers[replica].end()

    def kill(self, replica: int) -> None:
        self.killed.append(replica)
        self._gone.add(replica)

    def events(self, timeout_s: float) -> Seq[Heard]:
        try:
            heard = [self._heard.get(timeout=timeout_s / 10)]
        except Empty:
            return []
        while not self._heard.empty():
            heard.append(self._heard.get())
        return [(number, event) for number, event in heard if number not in self._gone]

    def close(self) -> None:
        self.is_closed = True
        for number, worker in self._workers.items():
            if number not in self._gone:
                worker.end()

    def _read(self, number: int, worker: ReplicaWorker) -> None:
        self._tell(number, Placed(f"node-{number}"))
        for event in worker.events():
            if number in self._frozen:
                self._frozen[number].wait()
            told = getattr(event, "message", "")
            if told.startswith("Fatal"):  # not a word comes from a process that has ended
                event = Died("ActorDiedError")
            self._tell(number, event)

    def _tell(self, number: int, event: ReplicaEvent) -> None:
        self._heard.put((number, event))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    while not is_so():
        time.sleep(0.001)
