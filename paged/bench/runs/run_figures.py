"""What `bench throughput` and `bench prefix` measure, as their results state it."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from pagedrun.paged.bench.result import Measured
from pagedrun.paged.bench.runs.length_figures import TokenCount
from pagedrun.paged.bench.spread import SpreadFigures


class ModelDescription(TypedDict):
    """`model`."""

    name: str
    weights: str
    dtype: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


class WorkloadFigures(TypedDict):
    """As `Workload`."""

    rows: int
    shared: int
    unique: TokenCount
    output: TokenCount
    group_size: int | None
    seed: int


class AnyRun(TypedDict):
    """What is measured of any program's run."""

    total_s: float
    prefill_s: float
    rows: int
    prompt_tokens: int
    generated_tokens: int
    decode_rows: int
    decode_step: SpreadFigures | None
    peak_memory: int
    others_busy: float | None
    rows_per_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


class RunRecord(AnyRun):
    """A run as `RunFigures` has it; a peer's lacks what only pagedrun lets see."""

    decode_s: NotRequired[float]
    cached_tokens: NotRequired[int]
    decode_attention: NotRequired[SpreadFigures | None]
    hit_rate: NotRequired[float]
    peak_blocks: NotRequired[int]
    block_size: NotRequired[int]
    pool_bytes: NotRequired[int]
    preemptions: NotRequired[int]
    ops: NotRequired[Mapping[str, float]]
    decode_ops: NotRequired[Mapping[str, float]]
    batch_rows: NotRequired[int]


class KernelTime(TypedDict):
    """Kernels of one name: how many ran, and their seconds together."""

    name: str
    count: int
    seconds: float


class DeviceProfileFigures(TypedDict):
    """What a GPU and the host did in a run of its own under the profiler.

    graph_steps were replayed; prompt_steps worked on prompts; eager_steps only decoded, kernel by
    kernel, those that were captured included. device_busy: the share of `seconds` in which at least
    one kernel ran. host_s_per_step: seconds in which the host did not wait for the device.
    """

    seconds: float
    steps: int
    graph_steps: int
    prompt_steps: int
    eager_steps: int
    device_busy_s: float
    device_busy: float
    host_waited_s: float
    host_s_per_step: float
    graph_launches: int
    kernel_launches: int
    kernels: list[KernelTime]


class ContenderSummary(TypedDict):
    """Over a contender's runs."""

    total_s: SpreadFigures | None
    prefill_s: SpreadFigures | None
    prompt_tokens_per_s: SpreadFigures | None
    generated_tokens_per_s: SpreadFigures | None
    decode_step_s: SpreadFigures | None


class ContenderFigures(TypedDict):
    """One entry of `contenders`. `device_profile` where a GPU was to be profiled."""

    name: str
    summary: ContenderSummary
    runs: list[RunRecord]
    device_profile: NotRequired[DeviceProfileFigures]


class ContenderRatio(TypedDict):
    """One entry of `ratios`: how many times as long another took, and whether it says the same."""

    name: str
    end_to_end: SpreadFigures | None
    prefill: SpreadFigures | None
    decode: SpreadFigures | None
    rows_alike: int
    first_tokens_alike: int
    rows: int


class ThroughputBenchFigures(Measured):
    """The whole of `bench throughput`; `config` are the engine's settings."""

    model: ModelDescription
    workload: WorkloadFigures
    config: dict[str, object]
    repeat: int
    profile: bool
    contenders: list[ContenderFigures]
    ratios: list[ContenderRatio]


class PrefixRows(TypedDict):
    """`workload`: tokens of a row behind the prefix, and of its answer."""

    unique: int
    output: int


class ModeFigures(TypedDict):
    """The runs of a point in one mode."""

    rows_per_s: SpreadFigures | None
    total_s: SpreadFigures | None
    prefill_s: SpreadFigures | None
    decode_step_s: SpreadFigures | None
    decode_attention_s: SpreadFigures | None
    hit_rate: float
    peak_blocks: int
    others_busy: float


class ModeRatio(TypedDict):
    """How many times as long a mode took as another."""

    end_to_end: SpreadFigures | None
    decode_step: SpreadFigures | None
    decode_attention: SpreadFigures | None


class SkippedMode(TypedDict):
    """A mode that the budget did not allow."""

    mode: str
    estimated_s: float


class PrefixPoint(TypedDict):
    """One entry of `points`: a prefix and the rows that share it; modes and ratios by name."""

    prefix: int
    group: int
    modes: dict[str, ModeFigures]
    ratios: dict[str, ModeRatio]
    skipped: list[SkippedMode]


class PrefixBenchFigures(Measured):
    """The whole of `bench prefix`; `config` are the engine's settings."""

    model: ModelDescription
    workload: PrefixRows
    config: dict[str, object]
    repeat: int
    budget_s: float
    points: list[PrefixPoint]
