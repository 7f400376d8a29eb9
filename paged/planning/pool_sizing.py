"""Sizes of the KV pools, one for each group of layers, and of the slots for recurrent states.

The first group keeps whole sequences. A group with a window needs, for each running sequence,
the blocks within its window, the tokens of the chunks of a step, and the blocks that wait
behind branch points. More blocks would be idle there: the rest of the memory goes to the groups
that keep whole sequences, all of the same number of blocks. If memory is short it is divided
for as many sequences as fit.

The division is made by levels. Level 0 has the blocks with which one row can continue, and
nothing kept for others; level 1 has the kept blocks as well; each further level is for one more
sequence.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property

from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.planned_request import BranchPoint
from pagedrun.paged.values.request import Completion, Request


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """Blocks that the rows of a plan need in the group that keeps whole sequences.

    `longest` is the maximum of a sequence at full length, and `mean` the average without shared
    blocks; `num_shared` are the shared ones. `largest` is the need of the largest row whose
    sequences must run together, `num_together` at most: its beams. There are `num_sequences` in
    all, None if unknown. `pinned` maps a window to the most blocks pinned behind branch points in a
    group with it.
    """

    longest: int
    mean: float = 1.0
    num_shared: int = 0
    largest: int = 1
    num_together: int = 1
    num_sequences: int | None = None
    pinned: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, windows: Iterable[int], *, is_whole: bool) -> "PoolDemand":
        """Return the demand of the rows of a plan. windows: of the groups that have one. is_whole:
        no other rows follow."""
        num_sequences = int(plan.num_samples.sum())
        return cls(
            longest=max(int(plan.num_blocks_at_full_length.max(initial=1)), 1),
            mean=max(int(plan.num_private_blocks.sum()) / max(num_sequences, 1), 1.0),
            num_shared=plan.sharing.num_shared_blocks,
            largest=int(plan.num_blocks_at_once.max(initial=1)),
            num_together=int(plan.num_beams.max(initial=1)),
            num_sequences=num_sequences if is_whole else None,
            pinned={
                window: num_pinned_blocks(plan.branch_points, window, plan.tree.block_size)
                for window in windows
            },
        )


Sizes = tuple[int, ...]  # blocks of each group, in the groups' order


class PoolSizer:
    """Sizes the pools of a run.

    Blocks are those of the first group, which keeps whole sequences; the pools of groups with a
    window follow from it, see `PoolSplit`.
    """

    def __init__(
        self,
        config: EngineConfig,
        specs: Seq[KVCacheSpec],
        budget: MemoryBudget,
        max_model_len: int,
    ) -> None:
        """Size pools for the groups of layers `specs` within `budget`.

        max_model_len: the most tokens that a prompt and its answer may have together.
        """
        self._config = config
        self._specs = specs
        self._budget = budget
        self._max_model_len = max_model_len

    @cached_property
    def most(self) -> int:
        """Capacity limit of the pool in blocks, whatever the requests need.

        Raises `UsageError` where `choose_sizes` does.
        """
        least = PoolDemand(longest=self._longest, num_sequences=0)
        first, *_ = self._choose(least, sys.maxsize)
        return first

    def check_max_model_len(self) -> None:
        """Raise `UsageError` if the pool cannot hold one row of the requested length."""
        size, asked = self._config.block_size, self._config.max_model_len
        fits = self.most * size + 1  # the last token is never stored
        if asked is not None and min(asked, self._max_model_len) > fits:
            raise UsageError(
                f"{option('max_model_len')} {asked} does not fit: the KV pool has room for "
                f"{self.most} blocks of {size} tokens; the largest that fits is "
                f"{option('max_model_len')} {fits}"
            )

    def sizes(self, first: Plan, *, is_whole: bool) -> Sizes:
        """Return the sizes of the pools for a file that begins with the window `first`.

        Later windows are unknown: unless the first is the whole file, they may need everything.
        Raises `UsageError` where rows of the plan together need more than the memory holds: a long
        one, and another with many beams in windows.
        """
        demand = PoolDemand.of(first, self.windows, is_whole=is_whole)
        needed = self.most
        is_filled = self._budget.is_filled and self._specs[0].bytes_per_token > 0
        if is_whole and not is_filled:
            needed = first.num_blocks_needed(self._config.max_num_seqs)
        return self.sizes_for(demand, needed)

    def sizes_for(self, demand: PoolDemand, num_needed: int = sys.maxsize) -> Sizes:
        """Return the sizes of the pools for a demand, of at most `num_needed` blocks in all.

        Raises `UsageError` where `sizes` does.
        """
        sizes = self._choose(demand, min(num_needed, self.most, self._most_in_use))
        if sizes[0] < demand.largest:
            raise UsageError(
                f"the memory for keys and values has no room for a row of {demand.largest} "
                f"blocks and the windows of {demand.num_together} beams; raise "
                f"{option('kv_cache_memory_bytes')}, or lower {option('beam_width')}"
            )
        return sizes

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of the groups that have one."""
        return tuple(spec.window for spec in self._specs[1:] if spec.window is not None)

    @property
    def _longest(self) -> int:
        """Blocks of a sequence of the greatest length."""
        return -(-self._max_model_len // self._config.block_size)

    @property
    def _most_in_use(self) -> int:
        """Largest number of blocks that a run can use: every running sequence at full length, and
        as much for the prefix kept for the next one."""
        return (self._config.max_num_seqs + 1) * self._longest

    def _choose(self, demand: PoolDemand, num_needed: int) -> Sizes:
        config = self._config
        split = PoolSplit(
            self._specs,
            config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            demand=demand,
        )
        return choose_sizes(
            split,
            num_needed=max(num_needed, 1),
            num_blocks=config.num_blocks,
            kv_cache_memory_bytes=config.kv_cache_memory_bytes,
            budget=self._budget,
        )


class PoolSplit:
    """Divides memory by the limits of a step and the demand of the rows."""

    def __init__(
        self,
        specs: Seq[KVCacheSpec],
        block_size: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        demand: PoolDemand,
    ) -> None:
        """specs: of the groups; the first keeps whole sequences."""
        self._windows = [None, *(spec.window for spec in specs[1:])]
        self._block_bytes = [spec.bytes_per_token * block_size for spec in specs]
        self._block_size = block_size
        self._chunk_blocks = -(-max_num_batched_tokens // block_size)
        self._demand = demand
        most = max_num_seqs
        if demand.num_sequences is not None:
            most = min(most, demand.num_sequences)
        self._levels = range(max(most - demand.num_together, 0) + 2 if most else 1)

    def num_bytes(self, sizes: Seq[int]) -> int:
        """Return the bytes of pools of these sizes."""
        return sum(each * count for each, count in zip(self._block_bytes, sizes, strict=True))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of each group."""
        return sum(self._block_bytes)

    @property
    def first_is_free(self) -> bool:
        """True if the first group has no layers, so that its blocks take no memory."""
        return not self._block_bytes[0]

    def beside(self, num_blocks: int, num_bytes: int) -> Sizes:
        """Return the sizes for a number of blocks of the groups that keep whole sequences; the
        others have as many as the sequences in these can use, within `num_bytes`.

        The sizes exceed `num_bytes` where not even level 0 fits.
        """
        level = min(
            self._highest(num_blocks, self._whole),
            self._highest(num_bytes, lambda level: self.num_bytes(self._sizes(num_blocks, level))),
        )
        return self._sizes(num_blocks, level)

    def within(self, num_bytes: int, most_blocks: int) -> Sizes:
        """Return the sizes within a number of bytes; groups that keep whole sequences have at most
        `most_blocks` blocks, and none where not even one block of each group fits."""
        most_blocks = min(most_blocks, sys.maxsize - 1)

        def least_bytes(level: int) -> int:
            return self.num_bytes(self._sizes(min(self._whole(level), most_blocks), level))

        level = self._highest(num_bytes, least_bytes)
        num_blocks = bisect_right(
            range(1, most_blocks + 1),
            num_bytes,
            key=lambda count: self.num_bytes(self._sizes(count, level)),
        )
        return self._sizes(num_blocks, level)

    def _highest(self, limit: int, cost: Callable[[int], int]) -> int:
        """Return the highest level with a cost, which increases, within a limit; else level 0."""
        return max(bisect_right(self._levels, limit, key=cost) - 1, 0)

    def _running(self, level: int) -> int:
        """Return the number of running sequences at a level."""
        return self._demand.num_together + max(level - 1, 0)

    def _whole(self, level: int) -> int:
        """Return the blocks of the sequences of a level, or of the largest row, kept whole."""
        return max(self._demand.largest, int(self._running(level) * self._demand.mean))

    def _sizes(self, num_blocks: int, level: int) -> Sizes:
        return tuple(
            num_blocks if window is None else min(self._windowed(window, level), num_blocks)
            for window in self._windows
        )

    def _windowed(self, window: int, level: int) -> int:
        """Return the most blocks that the sequences of a level take where there is a window.

        The tokens of a window, at any offset, touch one block more than they fill. A chunk adds the
        blocks that its tokens fill and one more; all chunks of a step have the step's tokens
        together, and those of the previous step are freed in the course of this one. No sequence
        takes more than its length.
        """
        running, demand = self._running(level), self._demand
        each = -(-(window - 1) // self._block_size) + 2
        if not level:
            return min(running * each + self._chunk_blocks, running * demand.longest)
        reached = min(running * each + 2 * self._chunk_blocks, running * demand.longest)
        return reached + demand.pinned.get(window, 0)


def choose_sizes(
    split: PoolSplit,
    *,
    num_needed: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    budget: MemoryBudget,
) -> Sizes:
    """Return the sizes of the pools in blocks.

    `num_blocks` sets the first if given, then `kv_cache_memory_bytes` all; otherwise the pools have
    the size that the requests need (`num_needed`), up to the `budget`. Raises `UsageError` if not
    even one block fits, or more than the available memory is requested.
    """
    available, block_bytes = budget.available, split.block_bytes
    if num_blocks is not None:
        if num_blocks < 1:
            raise UsageError(f"{option('num_blocks')} is {num_blocks}; it must be at least 1")
        sizes = split.beside(num_blocks, available)
        if (num_bytes := split.num_bytes(sizes)) > available:
            raise UsageError(
                f"{option('num_blocks')} {num_blocks} takes {num_bytes} bytes, "
                f"but {available} are free; pass at most {split.within(available, num_blocks)[0]}"
            )
        return sizes
    if kv_cache_memory_bytes is not None:
        most_blocks = num_needed if split.first_is_free else sys.maxsize
        sizes = split.within(kv_cache_memory_bytes, most_blocks)
        if sizes[0] < 1:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} {kv_cache_memory_bytes} is less than one "
                f"block, which takes {block_bytes} bytes; raise it, or pass a smaller "
                f"{option('block_size')}"
            )
        if kv_cache_memory_bytes > available:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} is {kv_cache_memory_bytes}, but {available} "
                "bytes are free; pass less"
            )
        return sizes
    sizes = split.within(budget.pool, num_needed)
    if sizes[0] < 1:
        raise UsageError(
            f"no memory for the KV pool: {budget.pool} bytes are free for it and one block takes "
            f"{block_bytes}; free some memory or use a smaller {option('block_size')}"
        )
    return sizes


def num_pinned_blocks(branches: Iterable[BranchPoint], window: int, block_size: int) -> int:
    """Return the most blocks that a group with a window keeps at once for later rows: for each
    point at which they leave a row's path, those within the window before it.

    branches: of each row, the point at which the next row leaves its path and those before it.
    """
    counts: dict[int, int] = {}  # by id of the branch points, which rows share

    def count(branch: BranchPoint) -> int:
        """Return the blocks pinned for a point and those before it."""
        path: list[BranchPoint] = []
        at: BranchPoint | None = branch
        while at is not None and id(at) not in counts:
            path.append(at)
            at = at.next
        before = 0 if at is None else counts[id(at)]
        for each in reversed(path):
            first = max(each.num_blocks * block_size - window, 0) // block_size
            known = 0 if each.next is None else each.next.num_blocks
            before += max(each.num_blocks - max(first, known), 0)
            counts[id(each)] = before
        return counts[id(branch)]

    return max(map(count, branches), default=0)


# Share of states in the memory for states and blocks, and in the swap space.
MAX_SHARE = 0.5
# Kept states reserved before the depth of the prefix tree is known.
MAX_LEVELS = 16
# A chunk reads one and writes another.
LEAST_SLOTS = 2
DRAFT_SLOTS = 16  # of all drafts of a step; with many sequences few drafts pay


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """Slots for recurrent states in device memory, and on the host for swapping.

    If they `are_opaque`, caches of Transformers, a prompt must not be split: see `StatePool`.
    """

    num_slots: int
    num_host_slots: int
    bytes_per_slot: int
    are_opaque: bool = False

    @property
    def host_bytes(self) -> int:
        """Bytes of the slots on the host."""
        return self.num_host_slots * self.bytes_per_slot


def longest_row(requests: Iterable[Request | Completion], max_model_len: int) -> int:
    """Return the most tokens of a row, prompt and answer together."""
    lengths = (
        min(each.max_num_tokens + 1, max_model_len)
        for each in requests
        if isinstance(each, Request)
    )
    return max(lengths, default=1)


class SlotSizer:
    """Sizes the slots of a model with `bytes_per_slot` of state per sequence, 0 for none.

    If they `are_opaque`, caches of Transformers, nothing else is kept of a sequence: they may use
    all of the memory for keys and values.

    A running sequence has a slot. While samples or beams fork, each reads the slot of its parent
    and writes one of its own; one is kept for each level of the tree of prefixes; and if a run
    `may_draft`, there are some for drafts.
    """

    def __init__(
        self,
        config: EngineConfig,
        bytes_per_slot: int,
        budget: MemoryBudget,
        *,
        are_opaque: bool = False,
        may_draft: bool = False,
    ) -> None:
        """Raise `UsageError` if `budget` has no room for one sequence."""
        self._are_opaque = are_opaque
        self._num_for_drafts = DRAFT_SLOTS if may_draft and not are_opaque else 0
        self._seats = config.max_num_seqs
        self._bytes_per_slot = bytes_per_slot
        self._budget = budget
        self._most = 0
        self._num_host_slots = 0
        if not bytes_per_slot:
            return
        memory = int(budget.pool * MAX_SHARE)
        if are_opaque:
            memory = min(config.kv_cache_memory_bytes or budget.pool, budget.available)
        room = memory // bytes_per_slot
        most = self._seats + self._seats // 2 + MAX_LEVELS + self._num_for_drafts
        self._most = min(most, room)
        if self._most < LEAST_SLOTS and are_opaque:
            raise UsageError(
                "no memory for a sequence's keys, values and states: two sequences of full "
                f"length take {LEAST_SLOTS * bytes_per_slot} bytes, but only {memory} are free; "
                f"pass a smaller {option('max_model_len')} or {option('max_tokens')}, or free "
                "some memory"
            )
        if self._most < LEAST_SLOTS:
            raise UsageError(
                f"no memory for the states of recurrent layers: one sequence takes "
                f"{LEAST_SLOTS * bytes_per_slot} bytes, and half of the {budget.pool} that are "
                "free for states and blocks; free some memory"
            )
        swapped = int(config.swap_space_bytes * MAX_SHARE) // bytes_per_slot
        self._num_host_slots = min(self._seats, swapped)

    @property
    def max_beam_width(self) -> int | None:
        """Largest number of beams of a row, None without a limit: all of them take a step together,
        and each may need a slot to read and one to write."""
        return self._most // 2 if self._bytes_per_slot else None

    @property
    def rest(self) -> MemoryBudget:
        """Budget for blocks, without the slots."""
        taken = self._most * self._bytes_per_slot
        return replace(
            self._budget,
            available=self._budget.available - taken,
            pool=self._budget.pool - taken,
        )

    def sizes(self, first: Plan, *, is_whole: bool) -> SlotSizes | None:
        """Return the sizes for a file that begins with the window `first`, None without states.

        Later windows are unknown: unless the first is the whole file, they may need everything.
        """
        if not self._bytes_per_slot:
            return None
        num_slots = self._most
        if is_whole:
            num_sequences = first.num_samples
            widest = int(num_sequences.max(initial=1))
            seats = min(self._seats, int(num_sequences.sum()))
            num_forking = max(seats // 2, widest) if widest > 1 else 0
            depth = 0 if first.states is None else first.states.depth
            num_slots = max(seats, widest) + num_forking + depth + 1 + self._num_for_drafts
        return self._sized(num_slots)

    def most(self) -> SlotSizes | None:
        """Return the largest sizes, None without states."""
        return self._sized(self._most) if self._bytes_per_slot else None

    def _sized(self, num_slots: int) -> SlotSizes:
        num_slots = max(min(num_slots, self._most), LEAST_SLOTS)
        return SlotSizes(
            num_slots, self._num_host_slots, self._bytes_per_slot, are_opaque=self._are_opaque
        )


def too_large(request: Request, block_size: int, num_blocks: int) -> RowError:
    """Return the refusal of a request that needs more than the `num_blocks` of the pool."""
    needed = request.num_blocks_at_once(block_size)
    beams = f", {request.params.beam_width} times" if request.params.has_beams else ""
    return RowError(
        "kv_cache_too_small",
        f"the row needs {needed} blocks for its prompt and max_tokens{beams}, but the pool has "
        f"{num_blocks}; raise {option('num_blocks')} or {option('kv_cache_memory_bytes')}, or "
        f"lower {option('max_tokens')}",
    )
