"""KernelPoint: one size of one op, and all that can do it, checked against each other and timed."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TypedDict, final

import torch
from torch import Tensor

from pagedrun.paged.bench.kernels.roofline import Roofline, Work
from pagedrun.paged.bench.kernels.stopwatch import Call, Stopwatch
from pagedrun.paged.bench.result import plain_spread
from pagedrun.paged.bench.spread import Spread, SpreadFigures


class Place(TypedDict, total=False):
    """The sizes of a point: those of its part, and no others."""

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
    """A call that was timed. `difference` is how far it is off, None where nothing compares."""

    seconds: SpreadFigures
    gb_per_s: float
    tflop_per_s: float
    of_roof: float
    difference: float | None


@final
class FailedCall(TypedDict):
    """A call that gets no figure, and why."""

    failed: str


class PointFigures(Place):
    """A measured point: each call by its name, and the ratios of their times."""

    contenders: dict[str, CallFigures | FailedCall]
    ratios: dict[str, SpreadFigures | None]


# The most by which a row may differ, as a part of its length: roundings stay far below.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One way to do it. `is_comparable` is False where another draw is as right as the point's."""

    name: str
    call: Callable[[], Tensor]
    work: Work
    is_comparable: bool = True


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """Calls that compute the same. `truth` says what, None: the first of them.

    `place` are the sizes, as a result states them. `ratios` names pairs of calls: how many times as
    long the first takes as the second.
    """

    place: Place
    calls: Seq[KernelCall]
    truth: Callable[[], Tensor] | None = None
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def measure(self, stopwatch: Stopwatch, turns: int, roofline: Roofline) -> PointFigures:
        """Check the calls, time those that are right, in turns, and return the result.

        A call that fails or answers otherwise than the truth gets no figure, but its failure told.
        """
        failures, errors = self._check()
        prepared: dict[str, Call] = {}
        for call in self.calls:
            if call.name not in failures:
                try:
                    prepared[call.name] = stopwatch.prepare(call.call)
                except Exception as error:  # a kernel that fails must not end the sweep
                    failures[call.name] = told(error)
        taken = stopwatch.seconds(list(prepared.values()), turns)
        seconds = dict(zip(prepared, taken, strict=True))
        contenders: dict[str, CallFigures | FailedCall] = {
            call.name: _figures(call.work, seconds[call.name], errors.get(call.name), roofline)
            if call.name in seconds
            else {"failed": failures[call.name]}
            for call in self.calls
        }
        return {
            **self.place,
            "contenders": contenders,
            "ratios": {
                name: plain_spread(Spread.of_ratios(seconds[slow], seconds[fast]))
                for name, (slow, fast) in self.ratios.items()
                if slow in seconds and fast in seconds
            },
        }

    def _check(self) -> tuple[dict[str, str], dict[str, float]]:
        """Return why calls get no figure, and by how much the others differ from the truth."""
        failures: dict[str, str] = {}
        answers: dict[str, Tensor] = {}
        for call in self.calls:
            try:
                answers[call.name] = call.call().clone()
            except Exception as error:
                failures[call.name] = told(error)
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
        """Return what all must answer, None where a single call is left to say so."""
        if self.truth is not None:
            try:
                return self.truth()
            except Exception:  # then no call can be checked, and each says so
                return None
        return next(iter(answers.values())) if len(answers) > 1 else None


def difference(answer: Tensor, truth: Tensor) -> float:
    """Return the most by which a row of `answer` is off, as a part of the true row's length.

    Of whole numbers, such as token ids: the part of them that differ. NaN counts as infinitely far.
    """
    if answer.shape != truth.shape:
        return float("inf")
    if not truth.is_floating_point():
        return float((answer != truth).double().mean())
    answer, truth = answer.float(), truth.float()
    off = (answer - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-20)
    return float(off.nan_to_num(nan=float("inf")).max())


def told(error: Exception) -> str:
    """Return what went wrong, in a line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no reason given'}"[:300]


def _figures(
    work: Work, seconds: Seq[float], error: float | None, roofline: Roofline
) -> CallFigures:
    spread = Spread.of(seconds)
    assert spread is not None, "every call has its turn"
    return {
        "seconds": spread.to_dict(),
        "gb_per_s": work.num_bytes / spread.median / 1e9,
        "tflop_per_s": work.flops / spread.median / 1e12,
        "of_roof": roofline.share(work, spread.median),
        "difference": error,
    }
