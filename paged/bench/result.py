"""Result: what a benchmark measured, and around it what was run, where, when, and with what."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, NotRequired, Self, TypedDict, TypeVar, cast

from pagedrun._version import __version__
from pagedrun.paged.bench.spread import Spread, SpreadFigures
from pagedrun.paged.execution.device import GpuDescription
from pagedrun.paged.metrics.report_sections import Hardware
from pagedrun.paged.metrics.run_statistics import describe_hardware
from pagedrun.paged.planning.memory import HostMemory


class Machine(Hardware):
    """`hardware`: as a report has it, with the memory of the machine in bytes.

    `load_average` is how many processes wanted to run over the last 1, 5 and 15 minutes, this one
    included: on a quiet machine, not more than it has threads.
    """

    memory: int
    load_average: list[float]


class Frame(TypedDict):
    """What is needed to compare a result with others': the line that was typed, and when."""

    bench: str
    command: str
    began: str
    seconds: float
    hardware: Machine


class MeasuredDevice(GpuDescription):
    """`device`, as `DeviceFacts` has it; the caches are missing where nothing is timed."""

    type: str
    cache_bytes: NotRequired[int]


class Measured(TypedDict):
    """What the figures of every benchmark have."""

    device: MeasuredDevice


Figures = TypeVar("Figures", bound=Measured)


@dataclass(frozen=True, slots=True)
class Result(Generic[Figures]):
    """The figures of a benchmark in their frame."""

    frame: Frame
    figures: Figures

    @classmethod
    def of(cls, bench: str, command: str, began: datetime, figures: Figures) -> Self:
        """Return the figures of `bench`, begun at `began` by the line `command`, just measured."""
        hardware = describe_hardware(figures["device"]["type"])
        frame: Frame = {
            "bench": bench,
            "command": command,
            "began": began.astimezone(UTC).isoformat(timespec="seconds"),
            "seconds": (datetime.now(UTC) - began).total_seconds(),
            "hardware": {
                **hardware,
                "versions": {**hardware["versions"], "pagedrun": __version__},
                "memory": HostMemory.read().total,
                "load_average": list(os.getloadavg()),
            },
        }
        return cls(frame, figures)

    @classmethod
    def of_dict(cls, result: Mapping[str, object]) -> Self:
        """Return a result that `to_dict` gave."""
        names = Frame.__annotations__
        frame = {name: value for name, value in result.items() if name in names}
        figures = {name: value for name, value in result.items() if name not in names}
        return cls(cast(Frame, frame), cast(Figures, figures))

    def to_dict(self) -> dict[str, object]:
        """Return the result as one object that JSON can hold, the frame first."""
        return {**self.frame, **self.figures}


def plain_config(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the engine's settings without the model's place, which the model's part names."""
    return {name: value for name, value in fields.items() if name != "model"}


def plain_spread(spread: Spread | None) -> SpreadFigures | None:
    """Return a spread as a result states it."""
    return spread.to_dict() if spread else None
