"""Messages between the driver and its replicas, and the interface of their transport.

A replica sends an offer, then events; the driver sends terms, then units. Finished rows are
packed: pickling looks at a dataclass's fields anew for each object, which for small objects
takes longer than all else, and the driver has the requests already.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any, Protocol

from pagedrun.paged.metrics.report_sections import EngineReport, Hardware
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.planning.pool_sizing import PoolDemand
from pagedrun.paged.planning.sizing import PlanBasis
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

VERSION = "version of pagedrun"  # in a fingerprint
# What a fingerprint's entries are called in a sentence.
_CALLED = {"weights": "weights of the model", "config": "description of the model"}


@dataclass(frozen=True, slots=True)
class ReplicaOffer:
    """What a plan needs to know of a replica, and what must be alike in all of them.

    `node` is the machine that it is on. `fingerprint` decides the bytes that it computes: versions,
    weights, description of the model, processor or GPU, kernels, threads. `arithmetic` is what a
    manifest says of that. `warnings` are for the user.
    """

    node: str
    fingerprint: Mapping[str, str]
    basis: PlanBasis
    arithmetic: Mapping[str, object] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        """The version of pagedrun that the replica has, as far as it is known."""
        return self.fingerprint.get(VERSION)

    def differing(self, other: "ReplicaOffer") -> list[str]:
        """Return in words where another replica computes otherwise than this one."""
        ours, theirs = self.fingerprint, other.fingerprint
        names = [*ours, *(name for name in theirs if name not in ours)]
        return [
            f"{_CALLED.get(name, name)} ({_short(theirs.get(name))}, not {_short(ours.get(name))})"
            for name in names
            if ours.get(name) != theirs.get(name)
        ]


def _short(value: str | None) -> str:
    """Return a value as a sentence has it: of a digest, how it begins."""
    if value is None:
        return "none"
    return value[:12] if len(value) == 64 and value.isalnum() else value


@dataclass(frozen=True, slots=True)
class RunTerms:
    """`demand`: what rows of the first window take of the pools. `reserved_len`: the tokens that an
    engine with one length for all rows would reserve.

    `seconds_left`: how long rows may be begun, None for as long as it takes; a span, since clocks
    of machines differ.
    """

    demand: PoolDemand
    reserved_len: int
    seconds_left: float | None = None


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

_NO_PARAMS = SamplingParams()
_REASONS = {each.value: each for each in FinishReason}


class _Rest:
    """The fields of a class behind its first ones, all of which have defaults."""

    def __init__(self, kind: type, num_first: int) -> None:
        rest = fields(kind)[num_first:]
        assert all(each.default is not MISSING for each in rest)
        self._values = attrgetter(*(each.name for each in rest))
        self._usual = tuple(each.default for each in rest)

    def of(self, value: object) -> tuple[Any, ...]:
        """Return the values, () where they are the usual ones."""
        found: tuple[Any, ...] = self._values(value)
        return () if found == self._usual else found


_OUTPUT = _Rest(SampleOutput, 4)
_COMPLETION = _Rest(Completion, 2)


def packed_answers(completions: Iterable[Completion]) -> tuple[Any, ...]:
    """Return what `unpacked_answers` takes."""
    return tuple(
        (
            each.request.index,
            tuple(
                (one.index, one.text, one.token_ids, one.finish_reason.value, *_OUTPUT.of(one))
                for one in each.outputs
            ),
            *_COMPLETION.of(each),
        )
        for each in completions
    )


def unpacked_answers(packed: Iterable[tuple[Any, ...]]) -> tuple[Completion, ...]:
    """Return the completions; their requests have the index and nothing else."""
    return tuple(
        Completion(
            Request(index, (), _NO_PARAMS),
            tuple(
                SampleOutput(number, text, token_ids, _REASONS[reason], *others)
                for number, text, token_ids, reason, *others in outputs
            ),
            *rest,
        )
        for index, outputs, *rest in packed
    )


Heard = tuple[int, ReplicaEvent]
"""The number of a replica, and what came from it."""


class ReplicaPool(Protocol):
    """Replicas by their numbers, none of which is given twice. No method but `events` waits.

    What is sent to a replica that is no more is lost, and nothing is heard of it any more.
    """

    @property
    def num_wanted(self) -> int:
        """How many are meant to run at once."""

    def add(self) -> int:
        """Ask for another replica; it loads its model when there is room for it."""

    def begin(self, replica: int, terms: RunTerms) -> None:
        """Send the terms of the run, before the first unit."""

    def feed(self, replica: int, number: int, part: PlanPart) -> None:
        """Send a unit, by its number."""

    def end(self, replica: int) -> None:
        """Say that no unit follows."""

    def kill(self, replica: int) -> None:
        """End a replica at once."""

    def events(self, timeout_s: float) -> Seq[Heard]:
        """Return what has come, as soon as there is something; nothing after `timeout_s`."""

    def close(self) -> None:
        """End all of them, and what was started for them."""
