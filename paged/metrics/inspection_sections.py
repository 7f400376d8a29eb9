"""Sections of an inspection (`inspect-cache --json`), a type each."""

from typing import NotRequired, TypedDict

from pagedrun.paged.metrics.report_sections import GroupFigures, StateFigures, StreamingFigures

Number = int | float


class InspectedPool(TypedDict):
    """`pool`; `num_steps` needs a snapshot."""

    block_size: int
    num_blocks: int
    bytes_per_token: int
    pool_bytes: int
    num_steps: NotRequired[int]


class RunCounts(TypedDict):
    """`statistics`: totals of a run, None where unknown."""

    hits: Number | None
    misses: Number | None
    hit_tokens: Number | None
    prompt_tokens: Number | None
    achievable_hit_rate: Number | None
    duplicate_rows: Number | None
    bytes_saved: Number | None
    shared_blocks_peak: Number | None
    peak_blocks: Number | None
    block_copies: Number | None
    forks: Number | None
    evictions: Number | None
    swap: Number | None
    recompute: Number | None
    hit_rate: float | None
    token_hit_rate: float | None


class StateCounts(TypedDict):
    """Number of blocks in each state; tokens in allocated blocks, and their share of the slots."""

    free: int
    cached: int
    private: int
    shared: int
    allocated: int
    tokens: int
    utilization: float


class PoolMoment(StateCounts):
    """`moment` and `peak`: the pool after a step; `asked`: the name of the moment in the query."""

    asked: str
    step: int
    time_s: float


class InspectedGroup(GroupFigures):
    """Entry of `groups`: the pool of a group of layers, as in the report's `kv.groups`.

    `moment`: its contents after the step shown, None without a snapshot.
    """

    moment: StateCounts | None


class BlockMap(TypedDict):
    """`block_map`: a letter for each block, and the state of each letter."""

    letters: dict[str, str]
    blocks: str


class InspectedReads(StreamingFigures):
    """`streaming`: as in the report, with bytes of a pass, passes and bytes read."""

    streamed_bytes: int
    passes: int
    bytes_read: int


class RowsHeld(TypedDict):
    """`rows_held`: number of rows that hold blocks at the moment, and the first of them."""

    count: int
    first: list[int]


class PreemptionRecord(TypedDict):
    """Entry of a snapshot's `Preemptions`."""

    step: int
    row: int
    sample: int
    swapped: bool
    tokens: int
    blocks: int
    for_row: int
    needed: int
    free: int


class PreemptionEvent(PreemptionRecord):
    """Preemption with its cause in words."""

    cause: str


class PreemptionEvents(TypedDict):
    """`preemptions`: their number, and the first of them."""

    count: int
    events: list[PreemptionEvent]


class HeldBlock(TypedDict):
    """Block of a table: number `logical` of the sequence is block `physical` of the pool."""

    logical: int
    physical: int
    ref_count: int
    state: str
    tokens: int


class GroupTable(TypedDict):
    """Block table of a sample of a row in a further group of layers.

    `group`: number of the group; `num_layers`, `window`: its layers. Blocks before the window are
    released and not listed.
    """

    group: int
    num_layers: int
    window: int | None
    sample: int
    blocks: list[HeldBlock]


class TableBlock(HeldBlock):
    """Block of a table in the first group.

    It was taken in step `since`: `found` in the cache, `copied` from a shared block before a write,
    or else empty. `tokens` counts those of all holders.
    """

    found: bool
    copied: bool
    since: int


class BeamCounts(TypedDict):
    """Beams that were forked from others or died, and blocks freed by their deaths."""

    forked: int
    died: int
    freed: int


class BeamEvent(BeamCounts):
    """Counts of one row after one step."""

    step: int
    row: int


class InspectedBeams(BeamCounts):
    """`beams`: sums of a run, and the number of rows with beams."""

    rows: int


class RowBeams(BeamCounts):
    """Sums of a row, number of steps with events, and the first events."""

    count: int
    events: list[BeamEvent]


class SharedBlocks(TypedDict):
    """Range `first` to `last` of table positions with the same blocks in several samples."""

    samples: list[int]
    first: int
    last: int


class LastToken(TypedDict):
    """Location of the last token of a table: block of the pool, offset in it, and slot (physical
    block times block size, plus offset)."""

    token: int
    physical: int
    offset: int
    slot: int


class ShownTable(TypedDict):
    """Block table of a sample of a row, and its number of stored tokens."""

    sample: int
    tokens: int
    blocks: list[TableBlock]
    last_token: LastToken | None


class InspectedRow(TypedDict):
    """Entry of `rows`.

    `stays`: the first intervals of steps [begin, end) in which the row held blocks; `sampled_at`:
    the first sampled step in one of them. `beams`: None for a row without beams; otherwise the
    samples of its tables are beams. `group_tables`: tables of the further groups of layers, if any.
    `id`: the id in the query; `text`: beginning of the prompt.
    """

    row: int
    is_kept: bool
    num_stays: int
    stays: list[tuple[int, int]]
    sampled_at: int | None
    tables: list[ShownTable]
    shared: list[SharedBlocks]
    beams: RowBeams | None
    preemptions: list[PreemptionEvent]
    group_tables: NotRequired[list[GroupTable]]
    id: NotRequired[str | None]
    text: NotRequired[str | None]


class HeldPrefix(TypedDict):
    """Prefix of `tokens` tokens that `rows` rows begin with, `row` among them.

    `parent`: index in the same list of the longest listed prefix of this one, which ends at
    `start`; None at the root. `text`: text of the tokens from `start`.
    """

    parent: int | None
    start: int
    tokens: int
    rows: int
    row: int
    tokens_saved: int
    bytes_saved: int
    text: NotRequired[str | None]


class HeldPrefixes(TypedDict):
    """`prefixes`: sums of all of them, and those that save most."""

    count: int
    tokens_saved: int
    bytes_saved: int
    top: list[HeldPrefix]


class Lifetimes(TypedDict):
    """`lifetimes` of blocks, in steps: `counts[i]` lasted `least[i]` to `most[i]` steps."""

    num_lives: int
    median: int
    p90: int
    longest: int
    least: list[int]
    most: list[int]
    counts: list[int]


class BlockLife(TypedDict):
    """Entry of `most_shared`, see `BlockLives`."""

    block: int
    begin: int
    end: int
    position: int
    rows: int
    hits: int
    peak_refs: int


class Inspection(TypedDict):
    """Inspection of a run; sections of a missing snapshot or report are None or empty."""

    pool: InspectedPool
    statistics: RunCounts
    moment: PoolMoment | None
    peak: PoolMoment | None
    use_over_time: list[int]
    block_map: BlockMap | None
    rows_held: RowsHeld | None
    rows: list[InspectedRow]
    prefixes: HeldPrefixes | None
    lifetimes: Lifetimes | None
    most_shared: list[BlockLife] | None
    preemptions: PreemptionEvents | None
    beams: InspectedBeams | None
    row_stride: NotRequired[int]
    groups: NotRequired[list[InspectedGroup]]
    states: NotRequired[StateFigures]
    streaming: NotRequired[InspectedReads]
