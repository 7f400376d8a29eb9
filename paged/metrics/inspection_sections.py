"""Sections of an inspection (`inspect-cache --json`), a type each."""

from typing import NotRequired, TypedDict

from pagedrun.paged.metrics.report_sections import GroupFigures, StateFigures

Number = int | float


class InspectedPool(TypedDict):
    """`pool`; only a snapshot knows the steps."""

    block_size: int
    num_blocks: int
    bytes_per_token: int
    pool_bytes: int
    num_steps: NotRequired[int]


class RunCounts(TypedDict):
    """`statistics`: what is counted once for a run, None for what nobody counted."""

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
    """Blocks in each state; of allocated ones the tokens, and the share of slots these fill."""

    free: int
    cached: int
    private: int
    shared: int
    allocated: int
    tokens: int
    utilization: float


class PoolMoment(StateCounts):
    """`moment` and `peak`: the pool after a step; `asked` is what somebody called it."""

    asked: str
    step: int
    time_s: float


class InspectedGroup(GroupFigures):
    """One entry of `groups`, the pool of a group of layers, as the report's `kv.groups` has it.

    `moment` is what was in it after the step shown, None where no snapshot tells.
    """

    moment: StateCounts | None


class BlockMap(TypedDict):
    """`block_map`: a letter for each block, and the state that each letter is for."""

    letters: dict[str, str]
    blocks: str


class RowsHeld(TypedDict):
    """`rows_held`: how many rows hold blocks at the moment, and the first of them."""

    count: int
    first: list[int]


class PreemptionRecord(TypedDict):
    """One entry of a snapshot's `Preemptions`."""

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
    """The same with its cause in words."""

    cause: str


class PreemptionEvents(TypedDict):
    """`preemptions`: how many there were, and the first of them."""

    count: int
    events: list[PreemptionEvent]


class HeldBlock(TypedDict):
    """One block of a table: the sequence's `logical` is the pool's `physical`."""

    logical: int
    physical: int
    ref_count: int
    state: str
    tokens: int


class GroupTable(TypedDict):
    """The block table of one sample of a row in a further group of layers.

    `group` is the group's number, `num_layers` and `window` its layers. Blocks behind the window
    are not in it, since they were given back.
    """

    group: int
    num_layers: int
    window: int | None
    sample: int
    blocks: list[HeldBlock]


class TableBlock(HeldBlock):
    """One block of a table, as `TableEntry` has it; the state by its name."""

    found: bool
    copied: bool
    since: int


class BeamCounts(TypedDict):
    """Of beams: how many began on the blocks of others, how many died, and the blocks that had no
    other holder when these gave them back."""

    forked: int
    died: int
    freed: int


class BeamEvent(BeamCounts):
    """The same behind one step, for one row."""

    step: int
    row: int


class InspectedBeams(BeamCounts):
    """`beams`: the sums of a run, and the rows that they are of."""

    rows: int


class RowBeams(BeamCounts):
    """The sums of a row, in how many steps its beams forked or died, and the first of these."""

    count: int
    events: list[BeamEvent]


class SharedBlocks(TypedDict):
    """Samples or beams of a row whose tables have the same blocks from place `first` to `last`."""

    samples: list[int]
    first: int
    last: int


class LastToken(TypedDict):
    """Where the last token of a table lies: block of the pool, place in it, and slot."""

    token: int
    physical: int
    offset: int
    slot: int


class ShownTable(TypedDict):
    """The block table of one sample of a row."""

    sample: int
    tokens: int
    blocks: list[TableBlock]
    last_token: LastToken | None


class InspectedRow(TypedDict):
    """One entry of `rows`. `stays` are the first stretches of steps [begin, end) in which the row
    held blocks; `sampled_at` is the first sampled step in one of them. `beams` is None for a row
    without; else the samples of its tables are beams.

    `group_tables` are those of the groups of layers behind the first, if there are several. `id` is
    how somebody asked for it, `text` how its prompt begins.
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
    """A prefix as `ShownPrefix` has it; `text` is that of the tokens behind its parent's."""

    parent: int | None
    start: int
    tokens: int
    rows: int
    row: int
    tokens_saved: int
    bytes_saved: int
    text: NotRequired[str | None]


class HeldPrefixes(TypedDict):
    """`prefixes`: what all of them save, and those that save most."""

    count: int
    tokens_saved: int
    bytes_saved: int
    top: list[HeldPrefix]


class Lifetimes(TypedDict):
    """`lifetimes`: how long blocks lived, in steps. `counts[i]` lives lasted `least[i]` to
    `most[i]` steps.
    """

    num_lives: int
    median: int
    p90: int
    longest: int
    least: list[int]
    most: list[int]
    counts: list[int]


class BlockLife(TypedDict):
    """One entry of `most_shared`, as `BlockLives` has it."""

    block: int
    begin: int
    end: int
    position: int
    rows: int
    hits: int
    peak_refs: int


class Inspection(TypedDict):
    """What snapshot and report tell of a run; None or empty where the one that would is missing."""

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
