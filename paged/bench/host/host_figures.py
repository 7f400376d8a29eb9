"""What `bench host` measures, as its result states it."""

from typing import TypedDict

from pagedrun.paged.bench.result import Measured
from pagedrun.paged.bench.runs.lengths import TokenCount
from pagedrun.paged.bench.spread import SpreadFigures


class HostRows(TypedDict):
    """`workload`."""

    rows_per_seat: int
    shared: int
    unique: int
    output: TokenCount


class HostPoint(TypedDict):
    """One entry of `points`: so many rows at once. None where no step told.

    step_s: seconds of a step, on average. steps, asked: of the first run, see `StepCounts`.
    """

    seats: int
    rows: int
    generated_tokens: int
    total_s: SpreadFigures | None
    tokens_per_s: SpreadFigures | None
    decode_s_per_row: SpreadFigures | None
    admission_step_s: SpreadFigures | None
    step_s: SpreadFigures | None
    steps: int
    asked: dict[str, int]


class HostBenchFigures(Measured):
    """The whole."""

    as_gpu: bool
    workload: HostRows
    repeat: int
    points: list[HostPoint]
