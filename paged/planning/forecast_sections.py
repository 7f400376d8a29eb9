"""Sections of the forecast, as `plan --json` prints them.

Keys that have a counterpart in the memory report of a run have its names.
"""

from typing import NotRequired, TypedDict, final

from pagedrun.paged.metrics.report_sections import (
    GroupsPart,
    PlainValue,
    PoolFigures,
    PreemptionCounts,
    StateFigures,
    TemplateAdvice,
    WeightFigures,
)
from pagedrun.paged.values.report_parts import LibraryPath


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
    """One entry of `top_prefixes`; `parent` is the place of the longest one that it continues.

    `text` is how it goes on behind that one, where texts were asked for.
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
    """One block size. `hit_tokens` are the prompt tokens that whole blocks spare, duplicates
    included; `computed_tokens` those that are left. `peak_blocks` hold what the rows held that
    ran when most blocks were held; of their slots the share `tail_waste` was empty.
    """

    block_size: int
    hit_tokens: int
    computed_tokens: int
    peak_blocks: int
    peak_bytes: int
    tail_waste: float


class BlockSizeComparison(TypedDict):
    """`block_sizes`: the figures of each, and which has the best of something."""

    best: int
    most_hits: int
    least_memory: int
    sizes: list[BlockSizeFigures]


class StepCounts(TypedDict):
    """`steps` of the simulation."""

    count: int
    max_running: int


class SimulatedPoint(TypedDict):
    """One entry of `timeline`: as the report's, but how long a step takes is not known."""

    step: int
    running: int
    waiting: int
    blocks_used: int
    blocks_shared: int
    blocks_cached: int
    tokens: int


class ReplicaFigures(TypedDict):
    """`replicas`: of a file that is cut into units for `count` replicas. Because of the cuts they
    compute `split_prefix_tokens` of prefixes again at most, and `computed_at_most` prompt tokens in
    all: that is if each one computes anew what is common in blocks that are not full, and without
    rows that are run twice because a replica was idle. `expected_efficiency` is the work of
    one, divided by what all have time for until the last is done."""

    count: int
    units: int
    split_prefix_tokens: int
    computed_at_most: int
    expected_efficiency: float


class DecodingRoom(TypedDict):
    """`decoding`, on a GPU: bytes that its pool leaves for steps that decode, as reckoned."""

    states: int
    graphs: int


class ForecastFigures(TypedDict):
    """What plans and a simulation come to."""

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
    library: NotRequired[LibraryPath]
    decoding: NotRequired[DecodingRoom]


class PeakMemory(TypedDict):
    """`memory` of the planning itself, in bytes."""

    peak_resident: int


class RunTime(TypedDict):
    """`run_time`, in seconds: of reading and encoding the file, of loading the model, of
    compiling its kernels, if they are not compiled, and of all at least and at most."""

    read_s: float
    load_s: float
    compile_s: float
    low_s: float
    high_s: float


class PlanReport(ForecastFigures):
    """The whole forecast of a file; `advice` is None where the rows can be read only once.

    `clamped` counts the rows whose `max_tokens` was cut to the room that the prompt leaves,
    `voting` those whose samples vote: all of their samples are in the figures. `run_time` is what
    a run will take, None where no run of the model was timed on this machine.
    """

    advice: TemplateAdvice | None
    clamped: int
    voting: int
    time: dict[str, float]
    run_time: RunTime | None
    memory: PeakMemory
    weights: WeightFigures
    config: dict[str, PlainValue]
