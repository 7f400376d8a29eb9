"""Kernels of a device by size, compared with dense attention and the roofline.

Each part (decode, prefix, prefill, ops) has a share of the time budget. Cheap points come first;
points that would exceed the budget or the memory are skipped and listed, and a kernel that fails
is reported without ending the sweep.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal, NotRequired, TypedDict

import torch

from pagedrun.kernels.environment import threads
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.bench.kernel_context import KernelContexts, KernelShape
from pagedrun.paged.bench.kernel_points import (
    DecodePoint,
    OpPoint,
    Point,
    PrefillPoint,
    PrefixPoint,
    op_points,
)
from pagedrun.paged.bench.kernel_timing import (
    GpuStopwatch,
    PointFigures,
    PointSizes,
    Roofline,
    Stopwatch,
    error_line,
)
from pagedrun.paged.bench.result import BenchDevice, Budget, Measured, Neighbours
from pagedrun.paged.execution.device import Device
from pagedrun.paged.values.errors import UsageError, option

Part = Literal["decode", "prefix", "prefill", "ops"]


class SkipReason(TypedDict):
    """Reason for a point without figures: memory, time or a failure."""

    reason: str
    needed_bytes: NotRequired[int]
    free_bytes: NotRequired[int]
    estimated_s: NotRequired[float]
    failure: NotRequired[str]


class SkippedPoint(PointSizes, SkipReason):
    """One entry of `skipped`."""

    part: Part


class MeasuredParts(TypedDict, total=False):
    """The points of the chosen parts."""

    decode: list[PointFigures]
    prefix: list[PointFigures]
    prefill: list[PointFigures]
    ops: list[PointFigures]


class PartFigures(MeasuredParts):
    """Kernel figures, and the points left out."""

    skipped: list[SkippedPoint]


class KernelsBenchFigures(Measured, PartFigures):
    """The whole of `bench kernels`; `shape`: fields of `KernelShape`, and the dtype."""

    shape: Mapping[str, Any]
    flushed_bytes: int
    roof: Roofline
    sweep: "KernelSweep"
    repeat: int
    budget_s: float
    others_busy: float | None


Say = Callable[[str], None]

# Share of the budget used up at the end of each part; an unused rest is left to the next.
SHARES: dict[Part, float] = {"decode": 0.5, "prefix": 0.75, "prefill": 0.9, "ops": 1.0}
MOST_AT_ONCE = 0.3  # of the seconds of a part, for one point


PARTS: tuple[Part, ...] = ("decode", "prefix", "prefill", "ops")


@dataclass(frozen=True, slots=True)
class KernelSweep:
    """Every context with every batch, every prefix with every group, and every chunk after each of
    `befores` tokens; `parts` are the measured ones."""

    contexts: Seq[int]
    batches: Seq[int]
    prefixes: Seq[int]
    groups: Seq[int]
    chunks: Seq[int]
    befores: Seq[int]
    parts: Seq[str] = PARTS

    @classmethod
    def short(cls) -> "KernelSweep":
        """Return what two CPU cores get through in about a minute."""
        return cls(
            contexts=(512, 2048, 8192, 32_768),
            batches=(1, 8, 32, 128),
            prefixes=(128, 512, 2048, 8192),
            groups=(8, 64, 256),
            chunks=(128, 512, 2048),
            befores=(0, 4096),
        )

    @classmethod
    def full(cls) -> "KernelSweep":
        """Return everything: contexts to 32k, prefixes to 16k, groups to 1024."""
        return cls(
            contexts=_POWERS[9:],
            batches=(1, 8, 32, 128),
            prefixes=_POWERS[7:15],
            groups=_POWERS[3:11],
            chunks=(128, 512, 2048, 8192),
            befores=(0, 4096, 16_384),
        )

    def check(self, block_size: int) -> None:
        """Raise `UsageError` naming the flag for sizes that cannot be measured."""
        for flag, values, least in (
            (option("context"), self.contexts, 1),
            (option("batch"), self.batches, 1),
            (option("prefix"), self.prefixes, 1),
            (option("group"), self.groups, 1),
            (option("chunk"), self.chunks, 1),
            (option("before"), self.befores, 0),
        ):
            if not values:
                raise UsageError(f"{flag} needs at least one value")
            for value in values:
                if value < least:
                    raise UsageError(f"{flag} {value}: it must be at least {least}")
        unit = self.least_prefix(block_size)
        for prefix in self.prefixes:
            if prefix % unit:
                raise UsageError(
                    f"{option('prefix')} {prefix}: only whole partitions and blocks are shared; "
                    f"give a multiple of {unit}"
                )
        for part in self.parts:
            if part not in PARTS:
                raise UsageError(f"{option('only')} {part}: choose from {', '.join(PARTS)}")

    @staticmethod
    def least_prefix(block_size: int) -> int:
        """Return the smallest number of tokens that are whole partitions and whole blocks."""
        return math.lcm(PARTITION_TOKENS, block_size)


@dataclass(frozen=True, slots=True)
class KernelsBench:
    """Kernels of a device on layers of one shape, compared in `repeat` interleaved rounds.

    Cheap points come first; a point that would exceed the rest of `budget_s` seconds or the memory
    is skipped and listed.
    """

    device: Device
    shape: KernelShape
    dtype: torch.dtype
    sweep: KernelSweep
    repeat: int
    budget_s: float

    def __post_init__(self) -> None:
        self.sweep.check(self.shape.block_size)

    def run(self, say: Say) -> KernelsBenchFigures:
        """Measure, reporting progress to `say`; return the result in JSON's types."""
        threads.configure()
        stopwatch = self._stopwatch()
        neighbours = Neighbours()
        say("Measuring a copy and a matrix product")
        with torch.inference_mode():
            roofline = Roofline.measure(self.device.torch_device, self.dtype, stopwatch)
            contexts = KernelContexts(self.shape, self.device.torch_device, self.dtype)
            self._warm_up(contexts, say)
            parts = self._parts(contexts, stopwatch, roofline, say)
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            "shape": {**asdict(self.shape), "dtype": dtype},
            "device": BenchDevice(self.device).to_dict(),
            "flushed_bytes": stopwatch.flushed_bytes,
            "roof": roofline,
            "sweep": self.sweep,
            "repeat": self.repeat,
            "budget_s": self.budget_s,
            "others_busy": neighbours.cpus_busy(),
            **parts,
        }

    def _stopwatch(self) -> Stopwatch:
        kind = GpuStopwatch if self.device.is_asynchronous else Stopwatch
        return kind(BenchDevice(self.device).cache_bytes)

    def _points(self) -> dict[Part, list[Point]]:
        """Return the points of each part, cheap ones first."""
        sweep = self.sweep
        points: dict[Part, list[Point]] = {
            "decode": [DecodePoint(n, size) for n in sweep.contexts for size in sweep.batches],
            "prefix": [PrefixPoint(n, size) for n in sweep.prefixes for size in sweep.groups],
            "prefill": [PrefillPoint(n, before) for n in sweep.chunks for before in sweep.befores],
            "ops": [*op_points()],
        }
        return {
            name: sorted(each, key=lambda point: point.work)
            for name, each in points.items()
            if name in sweep.parts
        }

    def _warm_up(self, contexts: KernelContexts, say: Say) -> None:
        """Compile the kernels, outside of the time budget."""
        say("Compiling the kernels")
        small: dict[str, Point] = {
            "decode": DecodePoint(300, 2),
            "prefix": PrefixPoint(self.sweep.least_prefix(self.shape.block_size), 2),
            "prefill": PrefillPoint(16, 16),
            "ops": OpPoint("silu_mul", 2),
        }
        for name in self.sweep.parts:
            for call in small[name].build(contexts, self.device.kernels).calls:
                try:
                    call.call()
                except Exception as error:  # reported again at each point
                    say(f"{name}, {call.name}: {error_line(error)}")

    def _parts(
        self, contexts: KernelContexts, stopwatch: Stopwatch, roofline: Roofline, say: Say
    ) -> PartFigures:
        """Return the measured parts, and the parts left out."""
        began = perf_counter()
        parts: MeasuredParts = {}
        skipped: list[SkippedPoint] = []
        for name, points in self._points().items():
            left = SHARES[name] * self.budget_s - (perf_counter() - began)
            budget = Budget(max(left, 0.0), MOST_AT_ONCE)
            parts[name] = measured = []
            for point in points:
                reason = self._reason_to_skip(point, contexts, budget)
                if reason is not None:
                    skipped.append({"part": name, **point.sizes, **reason})
                    continue
                started = perf_counter()
                try:  # the data of a point is freed before the next one is made
                    result = point.build(contexts, self.device.kernels).measure(
                        stopwatch, self.repeat, roofline
                    )
                except Exception as error:  # a failure must not end the sweep
                    skipped.append({"part": name, **point.sizes, **_failure(error)})
                    continue
                budget.note(point.work, perf_counter() - started)
                measured.append(result)
                say(_line(name, result))
            measured.sort(key=_order)
        return {**parts, "skipped": skipped}

    def _reason_to_skip(
        self, point: Point, contexts: KernelContexts, budget: Budget
    ) -> SkipReason | None:
        needed, free = point.num_bytes(contexts), BenchDevice(self.device).free_bytes()
        if needed > free:
            return {"reason": "memory", "needed_bytes": needed, "free_bytes": free}
        seconds = budget.too_much({"this": point.work}).get("this")
        return None if seconds is None else {"reason": "time", "estimated_s": seconds}


def _failure(error: Exception) -> SkipReason:
    return {"reason": "failure", "failure": error_line(error)}


def _order(result: PointFigures) -> tuple[Any, ...]:
    """Return the sort key of results of a part: names of operations, then sizes."""
    return tuple(value for value in result.values() if isinstance(value, int | str))


def _line(part: str, result: PointFigures) -> str:
    """Return the progress message of a point."""
    sizes = ", ".join(f"{name} {value}" for name, value in result.items() if name in _SIZES)
    times = ", ".join(
        f"{name} {each['seconds'].median * 1e3:.3f} ms"
        if "seconds" in each
        else f"{name}: {each['failed']}"
        for name, each in result["contenders"].items()
    )
    return f"{part}, {sizes}: {times}"


_SIZES = frozenset({"context", "batch", "prefix", "group", "chunk", "before", "op", "rows"})

_POWERS = tuple(2**power for power in range(16))  # 1 to 32,768
