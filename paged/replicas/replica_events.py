"""What comes back from a replica: one of these after the other, each small."""

from dataclasses import dataclass
from typing import Any

from pagedrun.paged.replicas.packed_answers import packed_answers, unpacked_answers
from pagedrun.paged.replicas.replica_offer import ReplicaOffer
from pagedrun.paged.report.record.report_sections import EngineReport
from pagedrun.paged.report.record.snapshot import Snapshot
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.values.request import Completion


@dataclass(frozen=True, slots=True)
class Placed:
    """The replica has a process, on this machine; it loads its model."""

    node: str


@dataclass(frozen=True, slots=True)
class Offered:
    """The model is loaded; the replica waits for its terms."""

    offer: ReplicaOffer


@dataclass(frozen=True, slots=True)
class Begun:
    """The replica has taken up a unit, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Answered:
    """Rows that are finished, and the state after the step that did.

    Pickled, their requests are without prompts, which the driver has.
    """

    completions: tuple[Completion, ...]
    record: StepRecord | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _answered, (packed_answers(self.completions), self.record)


@dataclass(frozen=True, slots=True)
class Tick:
    """The replica is there: its state after the last step, None before the first."""

    record: StepRecord | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The replica has answered all that it was given, or its time is up: then it `is_cut`."""

    report: EngineReport
    snapshot: Snapshot
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The replica cannot go on. `is_usage`: the command, the model or the machine is wrong.

    `node` is the machine that it was on, "" where it was on none.
    """

    message: str
    is_usage: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True)
class Died:
    """The process of the replica has ended, or was ended as nothing was heard of it."""

    cause: str


def _answered(packed: tuple[Any, ...], record: StepRecord | None) -> Answered:
    return Answered(unpacked_answers(packed), record)


ReplicaEvent = Placed | Offered | Begun | Answered | Tick | Ended | Failed | Died
