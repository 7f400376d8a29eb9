"""Sections of the memory report (`OUT.report.json`), a type each.

Bytes, seconds and tokens throughout; rates are between 0 and 1. A report made by this process
is read by the terminal, the pages and the advice with every key type-checked; one that comes
from a file is checked where it is read (`saved_report`).
"""

from collections.abc import Callable, Mapping
from typing import NotRequired, TypedDict, TypeVar, cast

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.step_costs import StepCosts
from pagedrun.paged.values.report_parts import LibraryFigures, StoreFigures

PlainValue = str | int | float | bool | None
Section = TypeVar("Section")


class RowCounts(TypedDict):
    """`rows`: how the rows of the input ended; `skipped` were in the output already, of which
    `skipped_failed` have an error for an answer (left out if none has).

    The others are those of a run that takes answers from an earlier one's output: of the `ok`
    rows, `copied` were answered by that, `continued` were begun by it.
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
    """`accuracy`: of the rows that name an expected answer, those that got it."""

    expected: int
    correct: int


class ScoredPromptFigures(TypedDict):
    """`scored_prompts`: prompts whose log-probabilities were asked for, and their tokens but the
    first of each; `logprob` is their sum, `perplexity` null where it is past what a float holds."""

    rows: int
    tokens: int
    logprob: float
    perplexity: float | None


class ReasoningCounts(TypedDict):
    """`reasoning`: the rows whose answers have a thought, and of these those in which one was cut,
    so that there is no answer."""

    rows: int
    cut: int


class VoteCounts(TypedDict):
    """`votes`: the rows with a vote, the samples that they asked for, and those drawn of them."""

    rows: int
    samples: int
    drawn: int


class TokenFigures(TypedDict):
    """`tokens`; of the generated ones some were copied from rows that ask the same."""

    prompt: int
    cached: int
    computed: int
    generated: int
    generated_copied: int
    preempted_recomputed: int


class LoadTimes(TypedDict):
    """What an engine took before its runs, which may have compiled nothing beforehand; a job adds
    `wall_s`, the time of the whole command until its output was complete."""

    load_s: float
    compile_s: NotRequired[float]
    wall_s: NotRequired[float]


class StageTimes(LoadTimes):
    """The stages before and beside a run."""

    plan_s: float


class TimeFigures(StageTimes):
    """`time`."""

    run_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


class PoolFigures(TypedDict):
    """What a run, or a simulation of it, held in its pool."""

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
    """The pool of a group of layers. `window` is how many tokens they see, None: all."""

    num_layers: int
    window: int | None
    num_blocks: int
    bytes_per_token: int
    pool_bytes: int
    peak_blocks: int
    peak_bytes: int


class GroupsPart(TypedDict, total=False):
    """The part of `kv` that is there for a model with several groups of layers.

    The other figures are of the first of them, which keeps whole sequences; bytes are of all.
    """

    groups: list[GroupFigures]


class KVFigures(PoolFigures):
    """`kv` of every model."""

    mean_use_when_short: float
    short_of_blocks: float


class KVSection(KVFigures, GroupsPart):
    """`kv`."""


class PrefixFigures(TypedDict):
    """`prefix`; `memory_report` says what each rate counts."""

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
    """`preemptions`, by the way in which they were made."""

    swap: int
    recompute: int


class LedgerFigures(TypedDict):
    """Where the bytes of a device went: what is left of `device_total` is free.

    On a GPU `graphs` is what captured steps hold, `decoding_room` what the pool leaves for them and
    for states of attention.
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
    """One entry of `timeline`: the engine after a step, `t` seconds into the run."""

    t: float
    step: int
    running: int
    waiting: int
    blocks_used: int
    blocks_shared: int
    blocks_cached: int
    tokens: int


class Hardware(TypedDict, total=False):
    """`hardware`; empty where no row reached the engine."""

    device: str
    processor: str
    threads: int
    python: str
    versions: dict[str, str | None]


class ReplicaPool(TypedDict):
    """The KV pool of a replica."""

    num_blocks: int
    pool_bytes: int
    peak_blocks: int
    utilization_at_peak: float


class ReplicaFigures(TypedDict):
    """One entry of the report's `replicas`.

    `node` is the address of its machine. It ran from `joined_s` to `left_s`, seconds of the run,
    and the driver wrote `rows` of its answers; tokens are those that it computed, also of rows that
    another replica answered first. `died` says of what, if it did: then tokens are those it had
    told of, and there is no `kv`.
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
    kv: NotRequired[ReplicaPool]
    died: NotRequired[str]


class StateFigures(TypedDict):
    """The report's `states` object, of a model with recurrent layers.

    A slot holds what all of these layers keep of one sequence. `kept_states` were kept for
    others to begin with, and `found_states` is how many sequences began with one.
    """

    num_slots: int
    bytes_per_slot: int
    pool_bytes: int
    peak_slots: int
    peak_bytes: int
    kept_states: int
    found_states: int


class WeightFigures(TypedDict):
    """`weights`: `count` numbers, the bytes that hold them, and the bits of one on average.

    `stored`: the tensors that are read, in their files, scales of quantised ones included; None
    where there are no files. `held`: in memory.
    """

    count: int
    stored_bytes: int | None
    stored_bits: float | None
    held_bytes: int
    held_bits: float


class EngineReport(TypedDict):
    """What an engine knows of its run."""

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
    library: NotRequired[LibraryFigures]
    step_costs: NotRequired[StepCosts]
    replicas: NotRequired[list[ReplicaFigures]]


class MovableParts(TypedDict):
    """One entry of `TemplateAdvice`: columns, or a line, to move behind what rows share.

    `text` is how the line begins, where texts were asked for.
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
    """`template_advice`: what of the prompts' order costs sharing, tried on a sample of rows."""

    sample_rows: int
    found: list[MovableParts]


class AdviceEntry(TypedDict):
    """One entry of `advice`, as `Advice` has it."""

    code: str
    sentence: str
    weight: float


class AnswersPart(TypedDict, total=False):
    """The parts of a report that are there if rows name an answer, have thoughts, or vote."""

    accuracy: Accuracy
    reasoning: ReasoningCounts
    votes: VoteCounts


class ScoredPromptsPart(TypedDict, total=False):
    """The part of a report that is there if prompts were scored."""

    scored_prompts: ScoredPromptFigures


class JobReport(EngineReport, AnswersPart, ScoredPromptsPart):
    """The whole report of a job."""

    rows: RowCounts
    errors: dict[str, int]
    template_advice: TemplateAdvice | None
    advice: list[AdviceEntry]


def groups_part(groups: list[GroupFigures]) -> GroupsPart:
    """Return what `kv` says of groups of layers: nothing of a single one."""
    return {"groups": groups} if len(groups) > 1 else {}


def section_of(kind: type[Section], value: Callable[[str], object]) -> Section:
    """Return a section with all of its keys, in order; `value` gives each by its name, checked."""
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


def weight_figures(count: int, stored_bytes: int | None, held_bytes: int) -> WeightFigures:
    """Return the figures of `count` weights."""
    return {
        "count": count,
        "stored_bytes": stored_bytes,
        "stored_bits": None if stored_bytes is None else 8 * stored_bytes / count,
        "held_bytes": held_bytes,
        "held_bits": 8 * held_bytes / count,
    }


FAILED = "error"  # the reason of a row without an answer


def endings(finish_reasons: Mapping[str, int]) -> dict[str, int]:
    """Return the answers by why they ended; rows without an answer are left out.

    A row with several outputs has several answers. Shares of answers are of the sum of these.
    """
    return {reason: number for reason, number in finish_reasons.items() if reason != FAILED}
