"""Checks and times of calls that compute the same, and the roofline of the device.

Calls are compared with a reference before they are timed; a wrong call gets no figure. Calls take
turns, and caches are emptied before each one. On a GPU a call is first captured into a graph, as
an engine would, so that the time of its launch from Python is not included; the launch of one
graph is, and the roofline states it.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypedDict, final

import torch
from torch import Tensor

from pagedrun.paged.bench.result import Spread


class PointSizes(TypedDict, total=False):
    """Sizes of a point; only those of its part."""

    context: int
    batch: int
    prefix: int
    group: int
    chunk: int
    before: int
    op: str
    rows: int


@final
class CallFigures(TypedDict):
    """Figures of a timed call; `difference` from the reference, None if not comparable."""

    seconds: Spread
    gb_per_s: float
    tflop_per_s: float
    of_roof: float
    difference: float | None


@final
class FailedCall(TypedDict):
    """Reason for a call without figures."""

    failed: str


class PointFigures(PointSizes):
    """A measured point: each call by its name, and the ratios of their times."""

    contenders: dict[str, CallFigures | FailedCall]
    ratios: dict[str, Spread | None]


# Largest accepted difference of a row, relative to its norm; rounding stays far below.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True)
class Work:
    """Minimum work of a call: bytes to read or write, and floating point operations."""

    num_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One implementation; `is_comparable` is False if its draws may differ from the reference's."""

    name: str
    call: Callable[[], Tensor]
    work: Work
    is_comparable: bool = True


Call = Callable[[], object]


class Stopwatch:
    """Seconds of calls in turns, with caches emptied before each call.

    This one is for calls that are finished when they return.
    """

    def __init__(self, cache_bytes: int, device: str = "cpu") -> None:
        # Twice the cache, since the first data replaced is not always the least recently used.
        self._scratch = torch.zeros(FLUSHED_CACHES * cache_bytes // 4, device=device)

    @property
    def flushed_bytes(self) -> int:
        """Bytes that are read and written before each call, to empty the caches."""
        return self._scratch.nbytes

    def prepare(self, call: Call) -> Call:
        """Return the timed form of a call that has run before. Raises its errors."""
        return call

    def seconds(self, prepared: Seq[Call], turns: int) -> list[list[float]]:
        """Return the seconds of each call in each turn; the order is reversed every other turn."""
        taken: list[list[float]] = [[] for _ in prepared]
        for turn in range(turns):
            for index in _order(len(prepared), turn):
                self._scratch.add_(1.0)
                began = perf_counter()
                prepared[index]()
                taken[index].append(perf_counter() - began)
        return taken


class GpuStopwatch(Stopwatch):
    """Stopwatch of calls that queue work on the current GPU, timed by events on the device."""

    def __init__(self, cache_bytes: int) -> None:
        super().__init__(cache_bytes, "cuda")

    def prepare(self, call: Call) -> Call:
        """Return the call captured as a graph. Raises its errors, and those of capturing."""
        return _captured(call)

    def seconds(self, prepared: Seq[Call], turns: int) -> list[list[float]]:
        """Return the seconds of each call in each turn; the order is reversed every other turn."""
        events: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in prepared]
        for turn in range(turns):
            for index in _order(len(prepared), turn):
                began, ended = _event(), _event()
                self._scratch.add_(1.0)
                began.record()
                prepared[index]()
                ended.record()
                events[index].append((began, ended))
            torch.cuda.synchronize()
        return [[began.elapsed_time(ended) / 1e3 for began, ended in each] for each in events]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes per second of a large copy (read and written) or sum (read), the faster one, and
    operations per second of a large matrix product in `dtype`, that of the kernels or float32: the
    best of several runs, and their median (`usual_`).

    `launch_s` is the time of an almost empty call; every other time contains it.
    """

    bytes_per_s: float
    flops_per_s: float
    usual_bytes_per_s: float
    usual_flops_per_s: float
    launch_s: float
    dtype: str

    @classmethod
    def measure(
        cls,
        device: torch.device,
        dtype: torch.dtype,
        stopwatch: Stopwatch,
        copy_bytes: int | None = None,
        matrix_size: int | None = None,
    ) -> "Roofline":
        """Measure the device; the sizes are those of its kind unless given."""
        num_bytes = copy_bytes or COPY_BYTES[device.type]
        size = matrix_size or MATRIX_SIZE[device.type]
        source = torch.ones(num_bytes // 4, device=device)
        target = torch.zeros_like(source)
        dtype = _fastest(dtype, device, stopwatch)
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)
        total, nothing = (torch.zeros(1, device=device) for _ in range(2))
        calls: tuple[Call, ...] = (
            lambda: target.copy_(source),
            lambda: torch.sum(source, 0, keepdim=True, out=total),
            lambda: torch.matmul(left, right, out=product),
            lambda: nothing.zero_(),
        )
        for call in calls:
            call()
        prepared = [stopwatch.prepare(call) for call in calls]
        copy_s, sum_s, product_s, launch_s = stopwatch.seconds(prepared, TURNS)
        size_read = source.nbytes
        return cls(
            bytes_per_s=max(2 * size_read / min(copy_s), size_read / min(sum_s)),
            flops_per_s=2 * size**3 / min(product_s),
            usual_bytes_per_s=max(2 * size_read / median(copy_s), size_read / median(sum_s)),
            usual_flops_per_s=2 * size**3 / median(product_s),
            launch_s=min(launch_s),
            dtype=str(dtype).removeprefix("torch."),
        )

    def share(self, work: Work, seconds: float) -> float:
        """Return the share of the roofline reached by work done in `seconds`.

        It may exceed 1: data that is read again comes from a cache.
        """
        bounds = (work.num_bytes / self.bytes_per_s, work.flops / self.flops_per_s)
        return max(bounds) / seconds


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """Calls that compute the same; `truth` is their reference, None: the first of them.

    `sizes` are, as a result states them. `ratios` names pairs of calls; a ratio is the
    time of the first divided by that of the second.
    """

    sizes: PointSizes
    calls: Seq[KernelCall]
    truth: Callable[[], Tensor] | None = None
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def measure(self, stopwatch: Stopwatch, turns: int, roofline: Roofline) -> PointFigures:
        """Check the calls, time the correct ones in turns, and return the result.

        A call that fails or differs from the reference has its failure in place of figures.
        """
        failures, errors = self._check()
        prepared: dict[str, Call] = {}
        for call in self.calls:
            if call.name not in failures:
                try:
                    prepared[call.name] = stopwatch.prepare(call.call)
                except Exception as error:  # a kernel that fails must not end the sweep
                    failures[call.name] = error_line(error)
        taken = stopwatch.seconds(list(prepared.values()), turns)
        seconds = dict(zip(prepared, taken, strict=True))
        contenders: dict[str, CallFigures | FailedCall] = {
            call.name: _figures(call.work, seconds[call.name], errors.get(call.name), roofline)
            if call.name in seconds
            else {"failed": failures[call.name]}
            for call in self.calls
        }
        return {
            **self.sizes,
            "contenders": contenders,
            "ratios": {
                name: Spread.of_ratios(seconds[slow], seconds[fast])
                for name, (slow, fast) in self.ratios.items()
                if slow in seconds and fast in seconds
            },
        }

    def _check(self) -> tuple[dict[str, str], dict[str, float]]:
        """Return the failures of calls, and the differences of the others from the reference."""
        failures: dict[str, str] = {}
        answers: dict[str, Tensor] = {}
        for call in self.calls:
            try:
                answers[call.name] = call.call().clone()
            except Exception as error:
                failures[call.name] = error_line(error)
        truth = self._true_answer(answers)
        errors: dict[str, float] = {}
        for call in self.calls:
            if call.name in failures or not call.is_comparable:
                continue
            if truth is None:
                failures[call.name] = "there is no reference to check it against"
                continue
            errors[call.name] = difference(answers[call.name], truth)
            if not errors[call.name] <= TOLERANCE.get(truth.dtype, 0.0):
                failures[call.name] = f"wrong: a row differs by {errors[call.name]:.2g}"
        return failures, errors

    def _true_answer(self, answers: Mapping[str, Tensor]) -> Tensor | None:
        """Return the reference result, None if it fails or a single call is left."""
        if self.truth is not None:
            try:
                return self.truth()
            except Exception:  # then no call can be checked
                return None
        return next(iter(answers.values())) if len(answers) > 1 else None


def difference(answer: Tensor, truth: Tensor) -> float:
    """Return the largest difference of a row of `answer`, relative to the norm of the true row.

    Of whole numbers, such as token ids: the share that differs. NaN counts as infinite.
    """
    if answer.shape != truth.shape:
        return float("inf")
    if not truth.is_floating_point():
        return float((answer != truth).double().mean())
    answer, truth = answer.float(), truth.float()
    off = (answer - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-20)
    return float(off.nan_to_num(nan=float("inf")).max())


def error_line(error: Exception) -> str:
    """Return an error in a line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no reason given'}"[:300]


def _figures(
    work: Work, seconds: Seq[float], error: float | None, roofline: Roofline
) -> CallFigures:
    spread = Spread.of(seconds)
    assert spread is not None, "every call has its turn"
    return {
        "seconds": spread,
        "gb_per_s": work.num_bytes / spread.median / 1e9,
        "tflop_per_s": work.flops / spread.median / 1e12,
        "of_roof": roofline.share(work, spread.median),
        "difference": error,
    }


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _order(count: int, turn: int) -> Seq[int]:
    return range(count) if turn % 2 == 0 else range(count - 1, -1, -1)


def _captured(call: Call) -> Call:
    """Return the replay of the call as one graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries set themselves up in their first call
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _fastest(dtype: torch.dtype, device: torch.device, stopwatch: Stopwatch) -> torch.dtype:
    """Return float32 if small products of it take less than half of the time, else the type.

    On a processor without instructions for bfloat16, torch multiplies that a hundred times slower
    than float32, to which our kernels widen it.
    """
    if dtype is torch.float32:
        return dtype
    kinds = (dtype, torch.float32)
    pairs = [torch.randn(2, TRIED_SIZE, TRIED_SIZE, device=device).to(each) for each in kinds]
    calls = [partial(torch.matmul, left, right) for left, right in pairs]
    for call in calls:
        call()
    first, second = stopwatch.seconds([stopwatch.prepare(call) for call in calls], TURNS)
    return kinds[2 * min(second) < min(first)]


FLUSHED_CACHES = 2
TURNS = 7
TRIED_SIZE = 256
# Bytes of the copied tensor, and rows and columns of the matrices.
COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}
