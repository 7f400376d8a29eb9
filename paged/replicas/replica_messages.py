"""Messages between the driver and its replicas, and the interface of their transport.

A replica sends an offer, then events; the driver sends terms, then units. Finished rows are packed
into tuples: pickling inspects the fields of a dataclass for each object, which dominates for small
objects, and the driver has the requests already.
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
# Names of fingerprint entries in sentences.
_CALLED = {"weights": "weights of the model", "config": "description of the model"}


@dataclass(frozen=True, slots=True)
class ReplicaOffer:
    """Properties of a replica that planning needs, and those that must be equal in all replicas.

    `node`: its machine. `fingerprint` decides the bytes that it computes: versions, weights,
    description of the model, processor or GPU, kernels, threads. `arithmetic`: the part of it for a
    manifest. `warnings`: for the user.
    """

    node: str
    fingerprint: Mapping[str, str]
    basis: PlanBasis
    arithmetic: Mapping[str, object] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        """Version of pagedrun on the replica, None if unknown."""
        return self.fingerprint.get(VERSION)

    def differing(self, other: "ReplicaOffer") -> list[str]:
        """Return the differences of another fingerprint from this one, in words."""
        ours, theirs = self.fingerprint, other.fingerprint
        names = [*ours, *(name for name in theirs if name not in ours)]
        return [
            f"{_CALLED.get(name, name)} ({_short(theirs.get(name))}, not {_short(ours.get(name))})"
            for name in names
            if ours.get(name) != theirs.get(name)
        ]


def _short(value: str | None) -> str:
    """Return a value as shown in a sentence: of a digest, the first characters."""
    if value is None:
        return "none"
    return value[:12] if len(value) == 64 and value.isalnum() else value


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Settings of a run on a replica.

    `demand`: pool use of the rows of the first window. `reserved_len`: tokens that one length for
    all rows would reserve. `seconds_left`: time in which rows may be started, None without a limit;
    a duration, because clocks of machines differ.
    """

    demand: PoolDemand
    reserved_len: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """The replica has a process on this machine and loads its model."""

    node: str


@dataclass(frozen=True, slots=True)
class Offered:
    """The model is loaded; the replica waits for its terms."""

    offer: ReplicaOffer


@dataclass(frozen=True, slots=True)
class Begun:
    """The replica has started a unit, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Answered:
    """Finished rows, and the state after the last step.

    Pickled requests have no prompts, which the driver has.
    """

    completions: tuple[Completion, ...]
    record: StepRecord | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _answered, (packed_answers(self.completions), self.record)


@dataclass(frozen=True, slots=True)
class Tick:
    """Sign of life, with the state after the last step, None before the first."""

    record: StepRecord | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The replica has answered all its rows, or its time is over: then it `is_cut`."""

    report: EngineReport
    snapshot: Snapshot | None
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The replica cannot continue. `is_usage`: because of the command, the model or the machine.

    `node`: its machine, "" without one.
    """

    message: str
    is_usage: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True)
class Died:
    """The process of the replica has ended, or was killed for its silence."""

    cause: str


def _answered(packed: tuple[Any, ...], record: StepRecord | None) -> Answered:
    return Answered(unpacked_answers(packed), record)


ReplicaEvent = Placed | Offered | Begun | Answered | Tick | Ended | Failed | Died

_NO_PARAMS = SamplingParams()
_REASONS = {each.value: each for each in FinishReason}


class _Rest:
    """Arguments of a class after its first ones, all of which have defaults."""

    def __init__(self, kind: type, num_first: int) -> None:
        rest = [each for each in fields(kind) if each.init][num_first:]
        assert all(each.default is not MISSING for each in rest)
        self._values = attrgetter(*(each.name for each in rest))
        self._usual = tuple(each.default for each in rest)

    def of(self, value: object) -> tuple[Any, ...]:
        """Return the values, () if all have their defaults."""
        found: tuple[Any, ...] = self._values(value)
        pairs = zip(found, self._usual, strict=True)
        is_usual = all(type(a) is type(b) and a == b for a, b in pairs)  # arrays are never
        return () if is_usual else found


_OUTPUT = _Rest(SampleOutput, 4)
_COMPLETION = _Rest(Completion, 2)


def packed_answers(completions: Iterable[Completion]) -> tuple[Any, ...]:
    """Return completions as tuples for `unpacked_answers`."""
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
    """Return the completions; their requests have no content but the index."""
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
"""Number of a replica, and its event."""


class ReplicaPool(Protocol):
    """Transport to replicas, identified by unique numbers. Only `events` blocks.

    Messages to a dead replica are lost, and it sends no more events.
    """

    @property
    def num_wanted(self) -> int:
        """Number of replicas that should run at once."""

    def add(self) -> int:
        """Request another replica; it loads its model when resources are free."""

    def begin(self, replica: int, terms: RunTerms) -> None:
        """Send the terms of the run, before the first unit."""

    def feed(self, replica: int, number: int, part: PlanPart) -> None:
        """Send a unit, by its number."""

    def end(self, replica: int) -> None:
        """Announce that no unit follows."""

    def kill(self, replica: int) -> None:
        """Kill a replica."""

    def events(self, timeout_s: float) -> Seq[Heard]:
        """Return new events as soon as there are some; none after `timeout_s`."""

    def close(self) -> None:
        """Kill all replicas, and release the resources of the pool."""
