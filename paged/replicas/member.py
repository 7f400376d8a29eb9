"""Member: a replica as the driver knows it."""

from dataclasses import dataclass
from enum import Enum

from pagedrun.paged.replicas.replica_events import Ended
from pagedrun.paged.replicas.replica_offer import ReplicaOffer
from pagedrun.paged.report.record.timeline import StepRecord


class Stage(Enum):
    """How far a replica is."""

    ASKED = "waits for room"
    LOADING = "loads its model"
    READY = "has offered itself"
    RUNNING = "runs"
    GONE = "is no more"


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

    def note_record(self, record: StepRecord | None) -> None:
        """Take its state after a step."""
        if record is not None and (self.record is None or record.step != self.record.step):
            self.stuck_s = 0.0
        self.record = record or self.record

    @property
    def is_there(self) -> bool:
        """Whether it has a process."""
        return self.stage in (Stage.LOADING, Stage.READY, Stage.RUNNING)
