"""Time of the host in a step, by the number of concurrent rows.

Everything is the engine's own except the kernels, which compute nothing and return random tokens:
planning, scheduling, preparation of inputs, sampling parameters, processing of tokens, decoding of
text. The remaining time limits the speed on every device. Steps are launched as on a CPU, or as
on a GPU that replays captured steps.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import TypedDict

from pagedrun.paged.bench.costless import CostlessBackend, CostlessGpu, StepCounts
from pagedrun.paged.bench.result import Measured, Spread
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.planning.sizing import GPU_REFILL_SHARE
from pagedrun.paged.values.engine_config import OFF
from pagedrun.paged.values.errors import UsageError, option

ROWS_PER_SEAT = 8
MAX_BATCHED_TOKENS = 8192
MODEL = "tiny"  # the time of its few tensors in torch is counted

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HostRun:
    """One run.

    `decode_s`: seconds a row of steps in which all concurrent rows decode and none is admitted.
    `admission_s`: seconds of steps that admit rows. `counts`: requests to the device.
    """

    seconds: float
    num_tokens: int
    num_steps: int
    decode_s: float | None
    admission_s: float | None
    counts: StepCounts

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated in a second."""
        return self.num_tokens / self.seconds


class HostPoint(TypedDict):
    """One entry of `points`: figures of `seats` concurrent rows, None without such a step.

    step_s: mean seconds of a step. steps, asked: of the first run.
    """

    seats: int
    rows: int
    generated_tokens: int
    total_s: Spread | None
    tokens_per_s: Spread | None
    decode_s_per_row: Spread | None
    admission_step_s: Spread | None
    step_s: Spread | None
    steps: int
    asked: StepCounts


class HostBenchFigures(Measured):
    """The whole of `bench host`; `workload`: lengths of the rows."""

    as_gpu: bool
    workload: dict[str, int | Lengths]
    repeat: int
    points: list[HostPoint]


@dataclass(frozen=True, slots=True)
class HostBench:
    """Numbers of concurrent rows (`seats`), each with a run of `rows_per_seat` times as many rows.

    Rows have `shared` and `unique` prompt tokens and get as many tokens as `output` draws. Each run
    is repeated `repeat` times. `as_gpu` launches the steps as on a GPU, with its default
    `refill_share` if that is None. Raises `UsageError` for values out of range.
    """

    seats: Seq[int] = (128, 1024, 4096)
    shared: int = 1024
    unique: int = 64
    output: Lengths = field(default_factory=lambda: Lengths(32, 256))
    repeat: int = 1
    rows_per_seat: int = ROWS_PER_SEAT
    as_gpu: bool = False
    refill_share: float | None = None

    def __post_init__(self) -> None:
        least = min(self.seats, default=0)
        if least < 1:
            raise UsageError(f"{option('seats')} is {least}; it must be at least 1")
        self._workload(least)  # which checks the other values

    def run(self, say: Say) -> HostBenchFigures:
        """Measure, reporting progress to `say`; return the result in JSON's types.

        Raises `UsageError` if a row is too long for the model.
        """
        model = BenchModel.from_shape(MODEL, 1)
        self._check_length(model.config.max_position_embeddings)
        say("Loading")
        kernels = CostlessBackend(model.config.vocab_size)
        engine = model.engine(
            kernels,
            CostlessGpu.of(kernels) if self.as_gpu else None,
            device="cpu",
            dtype="float32",
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            refill_share=self._refill_share,
            speculate=OFF,  # its tokens are random
        )
        self._measure(engine, 16)  # the first run of a process compiles and imports
        points = []
        for seats in self.seats:
            runs = [self._measure(engine, seats) for _ in range(self.repeat)]
            rate = median(run.tokens_per_s for run in runs)
            say(f"{seats:,} rows at a time: {rate:,.0f} tokens/s")
            points.append(_point(seats, seats * self.rows_per_seat, runs))
        return {
            "device": {"type": "cpu"},
            "as_gpu": self.as_gpu,
            "workload": {
                "rows_per_seat": self.rows_per_seat,
                "shared": self.shared,
                "unique": self.unique,
                "output": self.output.tokens,
            },
            "repeat": self.repeat,
            "points": points,
        }

    @property
    def _refill_share(self) -> float:
        if self.refill_share is not None:
            return self.refill_share
        return GPU_REFILL_SHARE if self.as_gpu else 0.0

    def _check_length(self, most: int) -> None:
        longest = self.shared + self.unique + self.output.high
        if longest > most:
            flags = f"{option('shared')}, {option('unique')} or {option('output')}"
            raise UsageError(
                f"rows have up to {longest} tokens, but the model of this benchmark takes at "
                f"most {most}; lower {flags}"
            )

    def _workload(self, seats: int) -> Workload:
        return Workload(seats * self.rows_per_seat, self.shared, self.unique, self.output)

    def _measure(self, engine: Engine, seats: int) -> HostRun:
        log: list[tuple[float, StepRecord]] = []
        kernels = engine.loaded.device.kernels
        assert isinstance(kernels, CostlessBackend), "made with other kernels"
        kernels.counts.clear()
        run = engine.reconfigured(max_num_seqs=seats).start(
            self._workload(seats).requests(engine.loaded.config.vocab_size),
            hooks=RunHooks(lambda record: log.append((time.perf_counter(), record))),
        )
        began = time.perf_counter()
        for answer in run:
            if answer.error is not None:
                raise UsageError(f"row {answer.request.index} cannot be run: {answer.error.marked}")
        seconds = time.perf_counter() - began
        decode, admission = [], []
        for (before, last), (now, record) in pairwise(log):
            if record.prompt_tokens > last.prompt_tokens:
                admission.append(now - before)
            elif record.running == seats:
                decode.append((now - before) / seats)
        return HostRun(
            seconds,
            log[-1][1].generated_tokens,
            log[-1][1].step,
            median(decode) if decode else None,
            median(admission) if admission else None,
            replace(kernels.counts),
        )


def _point(seats: int, num_rows: int, runs: Seq[HostRun]) -> HostPoint:
    return {
        "seats": seats,
        "rows": num_rows,
        "generated_tokens": runs[0].num_tokens,
        "total_s": Spread.of(run.seconds for run in runs),
        "tokens_per_s": Spread.of(run.tokens_per_s for run in runs),
        "decode_s_per_row": Spread.of_known(run.decode_s for run in runs),
        "admission_step_s": Spread.of_known(run.admission_s for run in runs),
        "step_s": Spread.of(run.seconds / run.num_steps for run in runs),
        "steps": runs[0].num_steps,
        "asked": runs[0].counts,
    }
