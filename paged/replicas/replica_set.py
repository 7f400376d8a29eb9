"""Replicas of a job by stage: requested, loading, ready, running, gone.

Keeps as many replicas as are wanted, refuses those whose fingerprint differs from that of the first
one, and ends those that are silent or take no steps.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from pagedrun._version import __version__
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.replicas.replica_messages import (
    Answered,
    Died,
    Ended,
    Failed,
    Heard,
    Offered,
    Placed,
    ReplicaEvent,
    ReplicaOffer,
    ReplicaPool,
    Tick,
)
from pagedrun.paged.values.errors import EngineError, UsageError, option

RATE_SECONDS = 10.0  # window of a replica's tokens per second
MARK_SECONDS = 0.5  # between two records of that window


class Stage(Enum):
    """Stage of a replica."""

    REQUESTED = "waiting for room"
    LOADING = "loading the model"
    READY = "ready"
    RUNNING = "running"
    GONE = "dead"


@dataclass(slots=True)
class Replica:
    """State of a replica.

    `silent_s`: seconds that the driver has waited without an event of it; `stuck_s`: without a
    step. `ended`: its last event, None for a replica that died of `cause`. `joined_s`, `left_s`:
    seconds of the run at which it began to run and ended.
    """

    number: int
    stage: Stage = Stage.REQUESTED
    node: str = ""
    offer: ReplicaOffer | None = None
    record: StepRecord | None = None
    ended: Ended | None = None
    cause: str | None = None
    silent_s: float = 0.0
    stuck_s: float = 0.0
    num_rows: int = 0
    joined_s: float = 0.0
    left_s: float = 0.0
    marks: deque[tuple[float, int]] = field(default_factory=deque)  # seconds, tokens generated

    def note_record(self, record: StepRecord | None) -> None:
        """Update the state after a step."""
        if record is not None and (not self.marks or record.t - self.marks[-1][0] >= MARK_SECONDS):
            self.marks.append((record.t, record.generated_tokens))
            while len(self.marks) > 2 and record.t - self.marks[0][0] > RATE_SECONDS:
                self.marks.popleft()
        if record is not None and (self.record is None or record.step != self.record.step):
            self.stuck_s = 0.0
        self.record = record or self.record

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated per second, over the last `RATE_SECONDS`."""
        if not self.marks:
            return 0.0
        (begin_s, begin), (end_s, end) = self.marks[0], self.marks[-1]
        if end_s == begin_s:
            begin_s, begin = 0.0, 0  # since its run began
        return (end - begin) / max(end_s - begin_s, 1e-9)

    @property
    def is_there(self) -> bool:
        """Return whether the replica has a process."""
        return self.stage in (Stage.LOADING, Stage.READY, Stage.RUNNING)


MAX_LOST = 3  # replicas that die while they load, before the job fails
POLL_SECONDS = 0.25  # short, so that signal handlers run in time
PATIENCE_SECONDS = 10.0  # for replicas without resources, once others are ready
MAX_SILENT_SECONDS = 60.0  # of a running replica; it ticks once a second

Warn = Callable[[str], None]


class ReplicaSet:
    """Set of replicas: keeps as many as are wanted, and refuses those with another fingerprint."""

    def __init__(
        self, pool: ReplicaPool, stall_timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """stall_timeout_s: maximum seconds of a step, 0 for no limit."""
        self.pool = pool
        self.members: dict[int, Replica] = {}
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._first: ReplicaOffer | None = None
        self.max_blocks = 0  # of the smallest pool, for which rows are planned

    def start_all(self, warn: Warn) -> list[ReplicaOffer]:
        """Start the replicas; return the offers of those that fit when all of them have loaded
        their models. A replica that dies before is replaced.

        Raises `UsageError` or `EngineError` if one of them cannot start, or differs from the first,
        or `MAX_LOST` die.
        """
        causes: list[str] = []
        for _ in range(self.pool.num_wanted):
            self.ask()
        waited_s = 0.0
        while not self._is_gathered(waited_s):
            began = self._clock()
            is_news = False
            for number, event in self.receive():
                is_news = is_news or not isinstance(event, Tick)
                self._refuse_failed(event)
                if isinstance(event, Died):
                    causes.append(event.cause)
                    if len(causes) == MAX_LOST:
                        raise EngineError(
                            f"{MAX_LOST} replicas died before they had loaded the model; cause of "
                            f"the first: {causes[0]}"
                        )
                    self.ask()
                if isinstance(event, Offered):
                    self._check(self.members[number], event.offer)
            waited_s = 0.0 if is_news else waited_s + self._clock() - began
        ready = [each for each in self.members.values() if each.stage is Stage.READY]
        offers = [each.offer for each in ready if each.offer is not None]
        if len(offers) < self.pool.num_wanted:
            warn(
                f"there is room for {len(offers)} of {self.pool.num_wanted} replicas; the others "
                "join when there is more"
            )
        self.max_blocks = min(each.basis.rules.max_blocks for each in offers)
        for cause in causes:
            warn(
                f"a replica died before it had loaded the model ({cause}); a new one was requested"
            )
        for message in dict.fromkeys(warning for each in offers for warning in each.warnings):
            warn(message)
        return offers

    def ask(self) -> None:
        """Request another replica."""
        number = self.pool.add()
        self.members[number] = Replica(number)

    def receive(self) -> Iterator[Heard]:
        """Wait a moment; yield new events, with the deaths of silent replicas.

        Events are applied to the replicas first.
        """
        began = self._clock()
        heard = list(self.pool.events(POLL_SECONDS))
        waited_s = self._clock() - began
        names = {number for number, _ in heard}
        for member in list(self.members.values()):
            if member.is_there and member.number not in names:
                member.silent_s += waited_s
            if member.stage is Stage.RUNNING:
                member.stuck_s += waited_s
        for number, event in heard:
            self._note(self.members[number], event)
            yield number, event
        for member in list(self.members.values()):
            cause = self._why_hung(member)
            if cause is not None:
                self.pool.kill(member.number)
                died = Died(cause)
                self._note(member, died)
                yield member.number, died

    def admits(self, member: Replica, offer: ReplicaOffer) -> str | None:
        """Return the reason to refuse a late replica, None for none."""
        if offer.version not in (None, __version__):
            return f"it has pagedrun {offer.version}, and this is {__version__}"
        differing = [] if self._first is None else self._first.differing(offer)
        if differing:
            return f"it has another {', another '.join(differing)} than the others"
        max_blocks = offer.basis.rules.max_blocks
        if max_blocks < self.max_blocks:
            return f"its pool has room for {max_blocks} blocks, not {self.max_blocks}"
        return None

    @property
    def running(self) -> list[Replica]:
        """Running replicas."""
        return [each for each in self.members.values() if each.stage is Stage.RUNNING]

    @property
    def num_there(self) -> int:
        """Number of replicas with a process."""
        return sum(each.is_there for each in self.members.values())

    def _is_gathered(self, waited_s: float) -> bool:
        stages = [each.stage for each in self.members.values()]
        if Stage.LOADING in stages or Stage.READY not in stages:
            return False
        return Stage.REQUESTED not in stages or waited_s >= PATIENCE_SECONDS

    def _check(self, member: Replica, offer: ReplicaOffer) -> None:
        if offer.version not in (None, __version__):
            raise UsageError(
                f"the replica on {member.node} has pagedrun {offer.version}, and this is "
                f"{__version__}: install the same version on every node"
            )
        if self._first is None:
            self._first = offer
            return
        differing = self._first.differing(offer)
        if differing:
            raise UsageError(
                f"the replica on {member.node} has another {', another '.join(differing)} than the "
                f"one on {self._first.node}: its rows would not have the same bytes"
            )

    def _refuse_failed(self, event: ReplicaEvent) -> None:
        """Raise the error of a replica that cannot start."""
        if isinstance(event, Failed):
            kind = UsageError if event.is_usage else EngineError
            raise kind(f"the replica on {event.node} cannot start: {event.message}")

    def _note(self, member: Replica, event: ReplicaEvent) -> None:
        member.silent_s = 0.0
        match event:
            case Placed(node):
                member.node, member.stage = node, Stage.LOADING
            case Offered(offer):
                member.offer, member.stage = offer, Stage.READY
            case Tick(record) | Answered(record=record):
                member.note_record(record)
            case Died(cause) | Failed(message=cause):
                member.cause, member.stage = cause, Stage.GONE
            case _:
                pass

    def _why_hung(self, member: Replica) -> str | None:
        """Return the reason to kill a replica that is silent or takes no steps, None for none."""
        limit = self._stall_timeout_s
        is_running = member.stage is Stage.RUNNING
        most = min(MAX_SILENT_SECONDS, limit or MAX_SILENT_SECONDS)
        if not is_running:
            most = limit or float("inf")
        if member.is_there and member.silent_s > most:
            return f"no message from it for {most:g} seconds"
        if is_running and member.stuck_s > limit > 0:
            return f"it took no step for {limit:g} seconds ({option('stall_timeout')})"
        return None
