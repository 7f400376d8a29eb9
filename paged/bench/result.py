"""Results of benchmarks, and the conditions that they are measured under.

A result holds the figures of a benchmark in a frame: command line, date, machine and versions.
Figures of several runs are spreads. Ratios are taken turn by turn: what is compared runs in one
process, in turns, so that other processes disturb both sides alike. The time that these
processes take is measured too, and a time budget decides which points are left out.
"""

import os
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar

from pagedrun._version import __version__
from pagedrun.paged.execution.device_options import GpuDescription
from pagedrun.paged.metrics.run_statistics import describe_hardware
from pagedrun.paged.planning.memory import HostMemory

if TYPE_CHECKING:
    from pagedrun.paged.execution.device import Device


class MeasuredDevice(GpuDescription):
    """Section `device` of a result; without `cache_bytes` if nothing is timed."""

    type: str
    cache_bytes: NotRequired[int]


class Measured(TypedDict):
    """Fields common to the figures of all benchmarks."""

    device: MeasuredDevice


def framed(
    bench: str, command: str, began: datetime, seconds: float, figures: object
) -> dict[str, Any]:
    """Return figures that were just measured, as JSON can hold them, with their conditions.

    `bench` was begun at `began` by the command line `command`, and took `seconds`. `hardware` is
    that of a report, with the bytes of memory and the load averages over 1, 5 and 15 minutes, this
    process included.
    """
    result: dict[str, Any] = plain(figures)
    hardware = describe_hardware(result["device"]["type"])
    return {
        "bench": bench,
        "command": command,
        "began": began.astimezone(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "hardware": {
            **hardware,
            "versions": {**hardware["versions"], "pagedrun": __version__},
            "memory": HostMemory.read().total,
            "load_average": list(os.getloadavg()),
        },
        **result,
    }


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it.

    A dataclass becomes a dict of its fields in their order without those that its `OMITTED` names,
    followed by the properties that its `COMPUTED` names. Mappings and sequences are converted
    element by element.
    """
    if is_dataclass(value):
        omitted = getattr(value, "OMITTED", ())
        names = [each.name for each in fields(value) if each.name not in omitted]
        names += getattr(value, "COMPUTED", ())
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def plain_config(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the engine's settings without the path of the model."""
    return {name: value for name, value in fields.items() if name != "model"}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, mean, minimum and maximum of `count` measurements."""

    median: float
    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Return the spread of the values, None if there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(median(ordered), fmean(ordered), ordered[0], ordered[-1], len(ordered))

    @classmethod
    def of_known(cls, values: Iterable[float | None]) -> "Spread | None":
        """Return the spread of the values that are not None, None if there are none."""
        return cls.of(value for value in values if value is not None)

    @classmethod
    def of_ratios(
        cls, numerators: Seq[float | None], denominators: Seq[float | None]
    ) -> "Spread | None":
        """Return the spread of the ratios of pairs; pairs with nothing measured are left out."""
        pairs = zip(numerators, denominators, strict=True)
        return cls.of(above / below for above, below in pairs if above is not None and below)


# Share of the free memory for a measurement: torch and other programs reserve some.
SHARE_OF_FREE = 0.8
# Assumed where the processor does not report its caches.
CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class BenchDevice:
    """Caches, memory and name of a device."""

    device: "Device"

    @property
    def cache_bytes(self) -> int:
        """Bytes of the last-level cache."""
        return self.device.cache_bytes() or CACHE_BYTES

    def free_bytes(self) -> int:
        """Return the bytes that a measurement may take now."""
        return int(self.device.free_bytes() * SHARE_OF_FREE)

    def to_dict(self) -> MeasuredDevice:
        """Return the description of the device in a result."""
        return {
            "type": self.device.torch_device.type,
            "cache_bytes": self.cache_bytes,
            **self.device.describe(),
        }


MIN_SECONDS = 0.25  # the system counts in hundredths of a second
_IDLE = slice(3, 5)  # of the fields of /proc/stat: idle, and waiting for a disk
_GUEST = 8  # from here on, time that is counted in other fields too


class Neighbours:
    """CPU time of all other processes since its construction; unknown except on Linux."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._own = process_time()
        self._at = perf_counter()
        self._all = self._busy()

    def cpus_busy(self, children_s: float = 0.0) -> float | None:
        """Return the mean number of CPUs kept busy by other processes, at least 0.

        `children_s` are CPU seconds of measured processes that this one started. None if it is
        unknown, or too little time has passed.
        """
        before, now = self._all, self._busy()
        seconds = perf_counter() - self._at
        if before is None or now is None or seconds < MIN_SECONDS:
            return None
        own = process_time() - self._own + children_s
        return max((now - before - own) / seconds, 0.0)

    def _busy(self) -> float | None:
        """Return the busy seconds of all CPUs since the machine started."""
        try:
            with self._stat.open() as file:
                fields = [int(word) for word in file.readline().split()[1:]][:_GUEST]
        except (OSError, ValueError):
            return None
        return (sum(fields) - sum(fields[_IDLE])) / os.sysconf("SC_CLK_TCK")


Piece = TypeVar("Piece", bound=Hashable)


class Budget:
    """Seconds from now on, with estimates from the largest piece of work so far.

    One piece may take at most the share `most_at_once` of the seconds.
    """

    def __init__(self, seconds: float, most_at_once: float = 0.1) -> None:
        self.most_at_once = seconds * most_at_once
        self._until = perf_counter() + seconds
        self._largest = 0.0
        self._seconds = 0.0

    @property
    def left(self) -> float:
        """Remaining seconds; negative after the end."""
        return self._until - perf_counter()

    def note(self, work: float, seconds: float) -> None:
        """Note the seconds of a piece of work."""
        if work >= self._largest:
            self._largest, self._seconds = work, seconds

    def seconds_for(self, work: float) -> float:
        """Return the estimated seconds of `work`, 0 without a piece so far."""
        return self._seconds * work / self._largest if self._largest else 0.0

    def too_much(self, work: Mapping[Piece, float]) -> dict[Piece, float]:
        """Return the seconds of the pieces larger than the remainder."""
        skipped: dict[Piece, float] = {}
        left = self.left
        for piece, each in work.items():
            seconds = self.seconds_for(each)
            if seconds > min(left, self.most_at_once):
                skipped[piece] = seconds
            else:
                left -= seconds
        return skipped
