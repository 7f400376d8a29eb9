"""Member: a replica as the driver knows it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from pagedrun.paged.replicas.replica_events import Ended
from pagedrun.paged.replicas.replica_offer import ReplicaOffer
from pagedrun.paged.report.record.timeline import StepRecord

RATE_SECONDS = 10.0  # over which a replica's speed is taken
MARK_SECONDS = 0.5  # from one of the records that it is taken from to the next


class Stage(Enum):
    """How far a replica is."""

    ASKED = "waiting for room"
    LOADING = "loading the model"
    READY = "ready"
    RUNNING = "running"
    GONE = "dead"


@dataclass(slots=True)
class Member:
    """`silent_s` is how long the driver has waited without hearing of it, `stuck_s` without a step.

    `ended` is its last word, None for one that died, `cause` then says of what. `joined_s` and
    `left_s` are when it began to run and ended, in seconds of the run.
    """

    number: int
    stage: Stage = Stage.ASKED
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
        """Take its state after a step."""
        if record is not None and (not self.marks or record.t - self.marks[-1][0] >= MARK_SECONDS):
            self.marks.append((record.t, record.generated_tokens))
            while len(self.marks) > 2 and record.t - self.marks[0][0] > RATE_SECONDS:
                self.marks.popleft()
        if record is not None and (self.record is None or record.step != self.record.step):
            self.stuck_s = 0.0
        self.record = record or self.record

    @property
    def tokens_per_s(self) -> float:
        """The tokens that it generated in a second, of its last ones."""
        if not self.marks:
            return 0.0
        (begin_s, begin), (end_s, end) = self.marks[0], self.marks[-1]
        if end_s == begin_s:
            begin_s, begin = 0.0, 0  # since its run began
        return (end - begin) / max(end_s - begin_s, 1e-9)

    @property
    def is_there(self) -> bool:
        """Whether it has a process."""
        return self.stage in (Stage.LOADING, Stage.READY, Stage.RUNNING)
