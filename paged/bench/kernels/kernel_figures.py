"""What `bench kernels` measures, as its result states it: a type for each part of the JSON."""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict, final

from pagedrun.paged.bench.result import Measured
from pagedrun.paged.bench.spread import SpreadFigures

Part = Literal["decode", "prefix", "prefill", "ops"]


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


class LayerShape(TypedDict):
    """`shape`: as `KernelShape`, with the dtype."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    dtype: str


class RooflineFigures(TypedDict):
    """`roof`: as `Roofline`."""

    bytes_per_s: float
    flops_per_s: float
    usual_bytes_per_s: float
    usual_flops_per_s: float
    launch_s: float
    dtype: str


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


class SkipReason(TypedDict):
    """Why a point was not measured: for want of memory, or of time, or because it failed."""

    reason: str
    needed_bytes: NotRequired[int]
    free_bytes: NotRequired[int]
    estimated_s: NotRequired[float]
    failure: NotRequired[str]


class SkippedPoint(Place, SkipReason):
    """One entry of `skipped`."""

    part: Part


class MeasuredParts(TypedDict, total=False):
    """The points of the parts that were asked for."""

    decode: list[PointFigures]
    prefix: list[PointFigures]
    prefill: list[PointFigures]
    ops: list[PointFigures]


class PartFigures(MeasuredParts):
    """The same with what was left out."""

    skipped: list[SkippedPoint]


class KernelsBenchFigures(Measured, PartFigures):
    """The whole; `sweep` are the sizes that were asked for."""

    shape: LayerShape
    flushed_bytes: int
    roof: RooflineFigures
    sweep: Mapping[str, list[int] | list[str]]
    repeat: int
    budget_s: float
    others_busy: float | None
