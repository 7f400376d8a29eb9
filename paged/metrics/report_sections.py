"""Sections of the memory report (`OUT.report.json`), a type each.

Units are bytes, seconds and tokens; rates are between 0 and 1. A report made by this process is
read by the terminal, the pages and the advice with every key type-checked; a report from a file is
checked where it is read (`saved_report`).
"""

from collections.abc import Callable, Mapping
from typing import NotRequired, TypedDict, TypeVar, cast

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.step_costs import StepCosts
from pagedrun.paged.values.report_parts import StoreFigures, TransformersFigures

PlainValue = str | int | float | bool | None
Section = TypeVar("Section")


class RowCounts(TypedDict):
    """`rows`: outcomes of the input rows.

    `skipped` rows were in the output already, `skipped_failed` of them with an error (left out if
    0). With answers of an earlier run, `copied` of the `ok` rows were copied from it, `continued`
    continue its answers, `computed` use neither.
    """

    total: int
    ok: int
    failed: int
    skipped: int
    skipped_failed: NotRequired[int]
    copied: NotRequired[int]
    continued: NotRequired[int]
    computed: NotRequired[int]


class Accuracy(TypedDict):
    """`accuracy`: rows with an expected answer, and those that got it."""

    expected: int
    correct: int


class ScoredPromptFigures(TypedDict):
    """`scored_prompts`: prompts with requested log-probabilities, their tokens except the first of
    each; `logprob` is the sum, `perplexity` null if it overflows a float."""

    rows: int
    tokens: int
    logprob: float
    perplexity: float | None


class ReasoningCounts(TypedDict):
    """`reasoning`: rows whose answers have a thought, and rows with a cut thought and no answer."""

    rows: int
    cut: int


class VoteCounts(TypedDict):
    """`votes`: rows with a vote, samples requested, and samples drawn."""

    rows: int
    samples: int
    drawn: int


class TokenFigures(TypedDict):
    """`tokens`; `generated_copied` of the generated ones were copied to duplicates of a row."""

    prompt: int
    cached: int
    computed: int
    generated: int
    generated_copied: int
    preempted_recomputed: int


class LoadTimes(TypedDict):
    """Times of an engine before its runs; a job adds `wall_s`, the time of the command until its
    output was complete."""

    load_s: float
    compile_s: NotRequired[float]
    wall_s: NotRequired[float]


class StageTimes(LoadTimes):
    """Times of the stages before and beside a run."""

    plan_s: float


class TimeFigures(StageTimes):
    """`time`."""

    run_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


class PoolFigures(TypedDict):
    """Pool use of a run or of its simulation."""

    block_size: int
    num_blocks: int
    bytes_per_token: int
    pool_bytes: int
    peak_blocks: int
    utilization_at_peak: float
    tail_waste: float
    tail_waste_expected: float
    contiguous_utilization: float
    contiguous_max_requests: int
    paged_max_requests: int


class GroupFigures(TypedDict):
    """Pool of a group of layers. `window`: visible tokens, None for all."""

    num_layers: int
    window: int | None
    num_blocks: int
    bytes_per_token: int
    pool_bytes: int
    peak_blocks: int
    peak_bytes: int


class GroupsPart(TypedDict, total=False):
    """Part of `kv` for a model with several groups of layers.

    The other figures are of the first group, which keeps whole sequences; bytes are of all groups.
    """

    groups: list[GroupFigures]


class KVFigures(PoolFigures):
    """`kv` of every model."""

    mean_use_when_short: float
    short_of_blocks: float


class KVSection(KVFigures, GroupsPart):
    """`kv`."""


class PrefixFigures(TypedDict):
    """`prefix`; see `memory_report` for the definition of each rate."""

    hit_tokens: int
    hit_rate: float
    achievable_hit_rate: float
    block_hit_rate: float
    possible_hit_rate: float
    partial_hit_tokens: int
    duplicate_rows: int
    hits: int
    misses: int
    evictions: int
    shared_blocks_peak: int
    bytes_saved: int
    seconds_saved: float | None
    attention_bytes_read: int
    attention_bytes_without_sharing: int


class CopyCounts(TypedDict):
    """`copy_on_write`."""

    forks: int
    block_copies: int


class PreemptionCounts(TypedDict):
    """`preemptions`, by mode."""

    swap: int
    recompute: int


class LedgerFigures(TypedDict):
    """Memory use of a device; the rest of `device_total` is free.

    On a GPU `graphs` is the memory of captured steps, `decoding_room` the memory that the pool
    leaves for them and for attention states.
    """

    weights: int
    kv_pool: int
    states: NotRequired[int]
    activations_peak: int
    graphs: NotRequired[int]
    decoding_room: NotRequired[int]
    other: int
    device_total: int


class MemoryFigures(TypedDict):
    """`memory`."""

    weights: int
    kv_pool: int
    states: NotRequired[int]
    activations_peak: int
    graphs: NotRequired[int]
    decoding_room: NotRequired[int]
    other: int
    free: int
    device_total: int


class TimelinePoint(TypedDict):
    """Entry of `timeline`: the engine after a step, `t` seconds into the run."""

    t: float
    step: int
    running: int
    waiting: int
    blocks_used: int
    blocks_shared: int
    blocks_cached: int
    tokens: int


class Hardware(TypedDict, total=False):
    """`hardware`; empty if no row reached the engine."""

    device: str
    processor: str
    threads: int
    python: str
    versions: dict[str, str | None]


class ReplicaKV(TypedDict):
    """KV pool of a replica."""

    num_blocks: int
    pool_bytes: int
    peak_blocks: int
    utilization_at_peak: float


class ReplicaFigures(TypedDict):
    """Entry of the report's `replicas`.

    `node`: address of its machine. It ran from `joined_s` to `left_s`, seconds of the run, and the
    driver wrote `rows` of its answers; tokens include rows that another replica answered first.
    `died`: cause of death; then tokens are the last reported ones, and there is no `kv`.
    """

    number: int
    node: str
    rows: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    joined_s: float
    left_s: float
    load_s: float
    kv: NotRequired[ReplicaKV]
    died: NotRequired[str]


class StateFigures(TypedDict):
    """`states` of a model with recurrent layers.

    A slot holds the states of all these layers for one sequence. `kept_states`: states kept for
    other sequences; `found_states`: sequences that started from one.
    """

    num_slots: int
    bytes_per_slot: int
    pool_bytes: int
    peak_slots: int
    peak_bytes: int
    kept_states: int
    found_states: int


class WeightFigures(TypedDict):
    """`weights`: their number, bytes, and average bits.

    `stored`: tensors in their files, scales of quantized ones included; None without files. `held`:
    in memory. `linear_layers`: projections of the files, those of all experts of a layer as one;
    0 if unknown. `quantized_layers` of them are quantized in memory, `int8_layers` multiply inputs
    rounded to int8. `resident_bytes` are kept in memory, `streamed_bytes` read from disk in each of
    `passes`, `bytes_read` in all, 0 if nothing is streamed; `wait_share` of the run waits for the
    disk, None if unknown.
    """

    count: int
    stored_bytes: int | None
    stored_bits: float | None
    held_bytes: int
    held_bits: float
    linear_layers: int
    quantized_layers: int
    int8_layers: int
    resident_bytes: int
    streamed_bytes: int
    passes: int
    bytes_read: int
    wait_share: float | None


class SpeculationFigures(TypedDict):
    """`speculation`, if tokens were drafted: drafts `proposed` and `accepted`, by their source, and
    the tokens that a sequence got in a step.

    `saved_s`: seconds that the same tokens would have taken without drafts, less those that they
    took; estimated from the steps without any. `indexed_tokens`: tokens in the indexes of drafters,
    at most.
    """

    proposed: int
    accepted: int
    by_source: dict[str, int]
    tokens_per_step: float
    saved_s: float
    indexed_tokens: int


class StreamingFigures(TypedDict):
    """`streaming`, if weights were read in each pass: bytes pinned in memory and of the ring beside
    them, seconds of reading and of waiting for it.

    `layers`: a letter for each layer and for the head, p for pinned, s for streamed. `host_bytes`,
    on a GPU: bytes in the memory of the host.
    """

    pinned_bytes: int
    ring_bytes: int
    read_s: float
    wait_s: float
    layers: str
    host_bytes: NotRequired[int]


class PoolingFigures(TypedDict):
    """`pooling`: vectors or scores of texts.

    `texts` of the rows, `distinct_texts` of them computed; `dimensions`: numbers of a result.
    `padded_tokens`: tokens of batches of 32 texts, sorted by length, each padded to its longest.
    `shared_prefix_tokens`: taken from the cache.
    """

    dimensions: int
    texts: int
    distinct_texts: int
    texts_per_s: float
    steps: int
    padded_tokens: int
    shared_prefix_tokens: int


class EngineReport(TypedDict):
    """Part of the report that an engine makes."""

    tokens: TokenFigures
    time: TimeFigures
    kv: KVSection
    prefix: PrefixFigures
    copy_on_write: CopyCounts
    preemptions: PreemptionCounts
    memory: MemoryFigures
    weights: WeightFigures
    finish_reasons: dict[str, int]
    timeline: list[TimelinePoint]
    config: dict[str, PlainValue]
    hardware: Hardware
    prefix_store: NotRequired[StoreFigures]
    states: NotRequired[StateFigures]
    library: NotRequired[TransformersFigures]
    step_costs: NotRequired[StepCosts]
    streaming: NotRequired[StreamingFigures]
    speculation: NotRequired[SpeculationFigures]
    pooling: NotRequired[PoolingFigures]
    replicas: NotRequired[list[ReplicaFigures]]


class MovableParts(TypedDict):
    """Entry of `TemplateAdvice`: columns or a line to move after the shared parts.

    `text`: beginning of the line, if texts were requested.
    """

    kind: str
    columns: list[str]
    position: int
    varies: float
    sample_saved_tokens: int
    sample_computed_tokens: int
    saved_share: float
    sentence: str
    text: NotRequired[str]


class TemplateAdvice(TypedDict):
    """`template_advice`: prompt orders that share more, tried on a sample of rows."""

    sample_rows: int
    found: list[MovableParts]


class AdviceEntry(TypedDict):
    """Entry of `advice`, see `Advice`."""

    code: str
    sentence: str
    weight: float


class AnswersPart(TypedDict, total=False):
    """Parts of a report for rows with expected answers, thoughts or votes."""

    accuracy: Accuracy
    reasoning: ReasoningCounts
    votes: VoteCounts


class ScoredPromptsPart(TypedDict, total=False):
    """Part of a report for scored prompts."""

    scored_prompts: ScoredPromptFigures


class JobReport(EngineReport, AnswersPart, ScoredPromptsPart):
    """Report of a job."""

    rows: RowCounts
    errors: dict[str, int]
    template_advice: TemplateAdvice | None
    advice: list[AdviceEntry]


def groups_part(groups: list[GroupFigures]) -> GroupsPart:
    """Return the groups of `kv`; nothing for a single group."""
    return {"groups": groups} if len(groups) > 1 else {}


def section_of(kind: type[Section], value: Callable[[str], object]) -> Section:
    """Return a section with all of its keys, in order; `value` returns the checked value of a
    key."""
    return cast(Section, {name: value(name) for name in kind.__annotations__})


def group_figures(shape: PoolShape, peak_blocks: int, block_size: int) -> GroupFigures:
    """Return the figures of the pool of a group of layers."""
    return {
        "num_layers": shape.num_layers,
        "window": shape.window,
        "num_blocks": shape.num_blocks,
        "bytes_per_token": shape.bytes_per_token,
        "pool_bytes": shape.num_bytes(block_size),
        "peak_blocks": peak_blocks,
        "peak_bytes": peak_blocks * block_size * shape.bytes_per_token,
    }


def weight_figures(
    count: int, stored_bytes: int | None, held_bytes: int, linears: tuple[int, int, int]
) -> WeightFigures:
    """Return the figures of `count` weights; linears: numbers of layers, as in the figures."""
    layers, quantized, int8 = linears
    return {
        "count": count,
        "stored_bytes": stored_bytes,
        "stored_bits": None if stored_bytes is None else 8 * stored_bytes / count,
        "held_bytes": held_bytes,
        "held_bits": 8 * held_bytes / count,
        "linear_layers": layers,
        "quantized_layers": quantized,
        "int8_layers": int8,
        "resident_bytes": held_bytes,
        "streamed_bytes": 0,
        "passes": 0,
        "bytes_read": 0,
        "wait_share": 0.0,
    }


FAILED = "error"  # finish reason of a row without an answer


def endings(finish_reasons: Mapping[str, int]) -> dict[str, int]:
    """Return the number of answers by finish reason, without failed rows.

    A row with several outputs has several answers. The sum is the denominator of percentages.
    """
    return {reason: number for reason, number in finish_reasons.items() if reason != FAILED}


def empty_engine_report() -> EngineReport:
    """Return the engine's part of the report of a run without engine."""
    return {
        "tokens": _zeros(TokenFigures),
        "time": _zeros(TimeFigures),
        "kv": {**_zeros(KVFigures), **groups_part([])},
        "prefix": _zeros(PrefixFigures),
        "copy_on_write": _zeros(CopyCounts),
        "preemptions": _zeros(PreemptionCounts),
        "memory": _zeros(MemoryFigures),
        "weights": _zeros(WeightFigures),
        "timeline": [],
        "config": {},
        "hardware": {},
        "finish_reasons": {},
    }


def _zeros(kind: type[Section]) -> Section:
    return section_of(kind, lambda name: 0)
