"""Sections of the forecast, as `plan --json` prints them.

Keys that have a counterpart in the memory report of a run have its names.
"""

from typing import Literal, NotRequired, TypedDict, final

from pagedrun.paged.metrics.report_sections import (
    GroupsPart,
    PlainValue,
    PoolFigures,
    PreemptionCounts,
    StateFigures,
    TemplateAdvice,
    WeightFigures,
)
from pagedrun.paged.values.report_parts import TransformersPath


class ForecastRows(TypedDict):
    """`rows`: those of the file, those refused by the code of their error, those simulated."""

    total: int
    planned: int
    refused: dict[str, int]
    duplicates: int
    simulated: int
    is_simulated_whole: bool


class ForecastTokens(TypedDict):
    """`tokens`; answers are taken to be as long as they may be."""

    prompt: int
    cached: int
    computed: int
    generated: int
    preempted_recomputed: int
    longest_row: int


@final  # so that a prefix with more keys is known not to be one of these
class SharedPrefix(TypedDict):
    """Entry of `top_prefixes`; `parent` is the index of the longest one that it continues.

    `text` is the part behind that one, where texts were requested.
    """

    tokens: int
    rows: int
    tokens_saved: int
    parent: int | None
    text: NotRequired[str]


class TreeFigures(TypedDict):
    """`tree`."""

    depth: int
    groups: int
    distinct_tokens: int
    shared_blocks: int
    top_prefixes: list[SharedPrefix]


class ForecastSavings(TypedDict):
    """`prefix`."""

    hit_tokens: int
    hit_rate: float
    achievable_hit_rate: float
    bytes_saved: int
    attention_bytes_read: int
    attention_bytes_without_sharing: int


class ForecastKV(PoolFigures, GroupsPart):
    """`kv`; `rows_at_once_…` are rows of full length, anywhere in the file and by the median."""

    dtype: str
    bytes_per_token_as: dict[str, int]
    blocks_needed: int
    peak_bytes: int
    rows_at_once_everywhere: int
    rows_at_once_typical: int


class BlockSizeFigures(TypedDict):
    """Figures of one block size.

    `hit_tokens` are the prompt tokens saved by whole blocks, duplicates included; `computed_tokens`
    the remaining ones. `peak_blocks` hold the rows that ran when most blocks were held;
    `tail_waste` is the empty share of their slots.
    """

    block_size: int
    hit_tokens: int
    computed_tokens: int
    peak_blocks: int
    peak_bytes: int
    tail_waste: float


class BlockSizeComparison(TypedDict):
    """`block_sizes`: the figures of each, and the best ones by several measures."""

    best: int
    most_hits: int
    least_memory: int
    sizes: list[BlockSizeFigures]


class DraftFigures(TypedDict):
    """`drafts` under `steps`, where recorded answers were replayed with drafts.

    `rows` and `tokens` are those of the answers; `proposed`, `accepted`, `by_source` and
    `tokens_per_step` as in the report of a run that gives them. `possible` steps of the simulation
    may have drafts. If all rows are answered alike, a run with drafts has `count` steps, and
    computes `wrong` drafts in vain.
    """

    rows: int
    tokens: int
    proposed: int
    accepted: int
    by_source: dict[str, int]
    tokens_per_step: float
    possible: int
    wrong: int
    count: int


class StepCounts(TypedDict):
    """`steps` of the simulation."""

    count: int
    max_running: int
    drafts: NotRequired[DraftFigures]


class SimulatedPoint(TypedDict):
    """Entry of `timeline`: as in the report, without the time of a step."""

    step: int
    running: int
    waiting: int
    blocks_used: int
    blocks_shared: int
    blocks_cached: int
    tokens: int


class ReplicaFigures(TypedDict):
    """`replicas`: figures of a file that is cut into units for `count` replicas.

    Because of the cuts at most `split_prefix_tokens` of prefixes are computed again, and at most
    `computed_at_most` prompt tokens in all: if each replica recomputes the common tokens of blocks
    that are not full, and without rows that run twice because a replica was idle.
    `expected_efficiency` is the work of one replica divided by the time of all until the last is
    done.
    """

    count: int
    units: int
    split_prefix_tokens: int
    computed_at_most: int
    expected_efficiency: float


class DecodingRoom(TypedDict):
    """`decoding`, on a GPU: estimated bytes that the pool leaves for decoding steps."""

    states: int
    graphs: int


Limit = Literal["disk", "arithmetic", "KV memory"]


class PassForecast(TypedDict):
    """`streaming`, if weights are read in each pass: bytes pinned in memory and of the ring beside
    them.

    Speeds and seconds are None before they are measured, those of computing also for experts.
    `limit`: what a run waits for.
    """

    pinned_bytes: int
    ring_bytes: int
    bytes_per_s: float | None
    tokens_per_s: float | None
    read_s: float | None
    compute_s: float | None
    run_s: float | None
    limit: Limit | None


class ForecastFigures(TypedDict):
    """Figures of the plans and the simulation of a file."""

    rows: ForecastRows
    tokens: ForecastTokens
    tree: TreeFigures
    prefix: ForecastSavings
    kv: ForecastKV
    block_sizes: BlockSizeComparison
    steps: StepCounts
    preemptions: PreemptionCounts
    timeline: list[SimulatedPoint]
    states: NotRequired[StateFigures]
    replicas: NotRequired[ReplicaFigures]
    library: NotRequired[TransformersPath]
    decoding: NotRequired[DecodingRoom]
    streaming: NotRequired[PassForecast]


class PeakMemory(TypedDict):
    """`memory` of the planning itself, in bytes."""

    peak_resident: int


class RunTime(TypedDict):
    """`run_time`, in seconds: reading and encoding the file, loading the model, compiling its
    kernels if they are not compiled, and lower and upper bounds of the total."""

    read_s: float
    load_s: float
    compile_s: float
    low_s: float
    high_s: float


class PlanReport(ForecastFigures):
    """Forecast of a file; `advice` is None where the rows can be read only once.

    `clamped` counts the rows with `max_tokens` cut to the room that the prompt leaves, `voting`
    those with voting samples: the figures contain all samples. `run_time` is None where no run of
    the model was timed on this machine.
    """

    advice: TemplateAdvice | None
    clamped: int
    voting: int
    time: dict[str, float]
    run_time: RunTime | None
    memory: PeakMemory
    weights: WeightFigures
    config: dict[str, PlainValue]
