"""ReplicaState: what one of several engines is at, for a display."""

from dataclasses import asdict, dataclass

from pagedrun.paged.report.record.timeline import StepRecord


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica at a moment of the run.

    `stage` says in words how far it is, `at` what it is at. `rows` were written of its answers;
    `tokens_per_s` are generated ones of the last seconds. `is_well` says whether it runs or has
    done its part, so that of many replicas those that are not well can be shown first.
    """

    number: int
    node: str
    stage: str
    at: str
    rows: int
    tokens_per_s: float
    is_running: bool
    is_well: bool


@dataclass(frozen=True, slots=True)
class ReplicatedStep(StepRecord):
    """The state of a run that several engines compute, and of each of them."""

    replicas: tuple[ReplicaState, ...] = ()

    @classmethod
    def with_replicas(
        cls, record: StepRecord, replicas: tuple[ReplicaState, ...]
    ) -> "ReplicatedStep":
        """Return the record with the states."""
        return cls(**asdict(record), replicas=replicas)
