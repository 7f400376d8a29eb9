"""Admission: gives waiting sequences their blocks, from the cache, other sequences or the store.

Published blocks of the prompt are shared. The next block is copied from a running sequence with a
prompt that begins alike (`find_block_source`), or loaded from the prefix store (`StoredPrefixes`).
A group of layers with a window needs only the blocks within it (`WindowAdmission`).
"""

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.block_pool import BlockTransfer, StagedBlocks, TransferKind
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.kv_groups import KVGroup
from pagedrun.paged.scheduling.scheduler_state import SchedulerState
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.states import NoStates
from pagedrun.paged.scheduling.step_input import StepBuilder

if TYPE_CHECKING:  # imports torch
    from pagedrun.paged.cache.prefix_store.stored_prefixes import StoredPrefixes


class Admission:
    """Admits waiting sequences and gives them their blocks."""

    def __init__(
        self,
        state: SchedulerState,
        predictor: OutputLengthPredictor,
        stored: "StoredPrefixes | None",
    ) -> None:
        self._state = state
        self._pool = state.pool
        self._predictor = predictor
        self._stored = stored
        self._states = state.states

    def admit(
        self,
        sequence: Sequence,
        running: list[Sequence],
        row_indices: Int64s,
        budget: int,
        step: StepBuilder,
    ) -> bool:
        """Allocate all blocks of a waiting sequence's known tokens; return False if it must wait.

        Cached blocks are shared; the rest come off the free list. Beside others it is admitted only
        if the pool is expected to hold all of them to their ends. row_indices: of the running ones.
        In groups with a window it gets the blocks of a chunk of up to `budget` tokens, and with
        recurrent layers a state.
        """
        hits = self._hits(sequence)
        if any(index not in sequence.host_blocks for index in self._to_restore(sequence, hits)):
            # A shared block that this sequence relied on was evicted while it was swapped out.
            self._state.drop_host_blocks(sequence)
            hits = self._hits(sequence)
        entries = [
            WindowAdmission.of(group, sequence, len(hits), budget) for group in self._state.further
        ]
        if not all(each.is_there for each in entries):
            return False
        num_new = self._pool.num_blocks_for(sequence.num_tokens) - len(hits)
        num_taken = num_new + self._pool.num_free_among(hits)
        if num_taken > self._pool.num_free:
            return False
        if running:
            members = np.append(row_indices, sequence.row_index)
            if not self._predictor.allows(self._pool, self._state.table, members, num_taken):
                return False
        state = self._states.entry(sequence, len(hits) * self._pool.block_size)
        if state is None:
            return False
        restore = self._to_restore(sequence, hits)
        is_new = not sequence.num_preemptions and not sequence.is_forked
        self._pool.share(hits)
        if is_new and sequence.is_first:
            self._pool.pin_path(sequence.block_keys[: sequence.num_keep_blocks])
        for each in entries:
            each.take(sequence, step)
            if is_new and sequence.is_first:
                each.group.pin_branches(sequence.block_keys, sequence.branch_point)
        self._states.take(sequence, state, step)
        if is_new and sequence.is_first:
            self._states.pin_points(sequence)
        self._states.reserve(sequence.row_index)
        self._state.unpin(sequence)
        sequence.block_table = hits + (self._pool.allocate(num_new) or [])
        for index in restore:
            source, target = sequence.host_blocks[index], sequence.block(index)
            step.transfers.append(BlockTransfer(TransferKind.SWAP_IN, source, target))
        num_copied, limit = 0, state.num_tokens
        if is_new and self._states.has_slots:
            limit = self._load_state(sequence, len(hits), limit, step)
            num_copied = max(limit - len(hits) * self._pool.block_size, 0)
        elif is_new:
            num_copied = self._copy_partial(sequence, running, hits, step)
        self._state.residency.begin(sequence, len(hits) + num_copied // self._pool.block_size)
        self._start_from(sequence, len(hits), num_copied, limit)
        return True

    def _copy_partial(
        self, sequence: Sequence, running: list[Sequence], hits: list[int], step: StepBuilder
    ) -> int:
        """Copy the start of the next block from the store or a running sequence; return the number
        of tokens."""
        if not self._state.prefix_caching:
            return 0
        groups, index = self._state.groups, len(hits)
        block_source = find_block_source(running, sequence.request.prompt_token_ids, hits, groups)
        loaded = load_prefix(self._stored, groups, sequence, index, block_source, step)
        if loaded or block_source is None:
            return loaded
        if not all(group.tables.has(sequence.row_index, index) for group in groups):
            return 0
        for group in groups:
            source, target = (
                group.tables.block(at, index) for at in (block_source.row_index, sequence.row_index)
            )
            step.transfers.append(BlockTransfer(TransferKind.COPY, source, target, group.index))
        return block_source.num_tokens

    def _load_state(
        self, sequence: Sequence, num_hits: int, num_found: int, step: StepBuilder
    ) -> int:
        """Load a state of the store if it is behind more tokens; return the tokens before it."""
        groups = self._state.groups
        return load_state(self._stored, groups, self._states, sequence, num_hits, num_found, step)

    def _hits(self, sequence: Sequence) -> list[int]:
        """Return the published blocks that a sequence can begin with, in all groups."""
        hits = self._pool.match(sequence.block_keys)
        further = self._state.further
        if further and sequence.host_blocks:  # more is not on the host for groups with a window
            return hits[: sequence.num_stored_tokens // self._pool.block_size]
        return hits[: num_usable(further, sequence, len(hits))]

    def _to_restore(self, sequence: Sequence, hits: list[int]) -> range:
        """Return the table indices that must come from the host for a swapped-out sequence."""
        if not sequence.host_blocks:
            return range(0)
        return range(len(hits), self._pool.num_blocks_for(sequence.num_stored_tokens))

    def _start_from(self, sequence: Sequence, num_hits: int, num_copied: int, limit: int) -> None:
        """Set the first token to compute of an admitted sequence, and count its cache hits.

        limit: the tokens with known states, in a model with recurrent layers.
        """
        size = self._pool.block_size
        found = num_hits * size + num_copied
        is_new = not sequence.num_preemptions and not sequence.is_forked
        if is_new and sequence.is_first:
            num_cached = min(found, sequence.num_prompt_tokens - 1, sequence.score_from, limit)
            sequence.num_cached_tokens = num_cached
            self._state.counts.prompt_tokens += sequence.num_prompt_tokens
            self._state.counts.cached_tokens += num_cached
            if num_copied <= size:  # more than a block comes from the store
                self._state.counts.partial_hit_tokens += max(num_cached - num_hits * size, 0)
            num_given = num_hits + num_copied // size
            self._pool.counts.hits += num_given
            if self._state.prefix_caching:
                self._pool.counts.misses += sequence.num_prompt_tokens // size - num_given
        stored = max(found, sequence.num_stored_tokens if sequence.host_blocks else 0)
        sequence.num_stored_tokens = stored
        sequence.num_computed_tokens = min(first_computed(sequence, stored), limit)
        for index in range(num_hits, self._pool.num_blocks_for(stored)):
            self._pool.record_fill(sequence.block(index), min(size, stored - index * size))
        sequence.num_hit_blocks = sequence.num_published_blocks = num_hits
        for index in range(num_hits, min(stored // size, len(sequence.block_keys))):
            self._pool.publish(sequence.block(index), sequence.block_keys[index])
            sequence.num_published_blocks = index + 1
        for group in self._state.further:
            self._book_stored(group, sequence, num_hits, stored)
        self._state.drop_host_blocks(sequence, keep_progress=True)

    def _book_stored(self, group: KVGroup, sequence: Sequence, begin: int, stored: int) -> None:
        """Record the stored blocks of an admitted sequence in a group, from index `begin` on."""
        size, row_index = group.pool.block_size, sequence.row_index
        begin = max(begin, int(group.tables.firsts[row_index]))
        for index in range(begin, group.pool.num_blocks_for(stored)):
            block_id = group.tables.block(row_index, index)
            group.pool.record_fill(block_id, min(size, stored - index * size))
            if (index + 1) * size <= stored and index < len(sequence.block_keys):
                group.pool.publish(block_id, sequence.block_keys[index])


class WindowAdmission(NamedTuple):
    """Block table that begins at index `first`: found blocks, then new ones, the first of which
    receive the host blocks of the sequence."""

    group: KVGroup
    first: int
    hits: list[int]
    num_new: int

    @classmethod
    def of(
        cls, group: KVGroup, sequence: Sequence, num_hits: int, budget: int
    ) -> "WindowAdmission":
        """Return the blocks that a sequence needs for its next chunk, of at most `budget` tokens.

        num_hits: blocks of its prompt that it shares in all groups; a sequence with blocks on the
        host shares none here.
        """
        size = group.pool.block_size
        if sequence.host_blocks:
            start, num_hits = sequence.num_computed_tokens, 0
        else:
            start = first_computed(sequence, num_hits * size)
        first = group.first_read(start)
        keys = sequence.block_keys[first:num_hits]
        hits = [block for key in keys for block in group.pool.match([key])]
        num_stored = first + len(hits) + len(group.on_host.get(sequence.row_index, ()))
        end = group.pool.num_blocks_for(min(sequence.num_tokens, start + budget))
        return cls(group, first, hits, max(end, num_stored) - first - len(hits))

    @property
    def is_there(self) -> bool:
        """True if enough blocks are free."""
        pool = self.group.pool
        return self.num_new + pool.num_free_among(self.hits) <= pool.num_free

    def take(self, sequence: Sequence, step: StepBuilder) -> None:
        """Set the table of the sequence, and add transfers of its host blocks."""
        group, row_index = self.group, sequence.row_index
        group.pool.share(self.hits)
        new = group.pool.allocate(self.num_new)
        assert new is not None, "fewer blocks are free than were counted"
        group.tables.set(row_index, self.hits + new, self.first)
        step.transfers += [
            BlockTransfer(TransferKind.SWAP_IN, source, target, group.index)
            for source, target in zip(group.on_host.get(row_index, ()), new, strict=False)
        ]


def first_computed(sequence: Sequence, num_stored: int) -> int:
    """Return the first token to compute of a sequence with `num_stored` stored tokens.

    At least one token is computed, for its logits, and all whose next token is to be scored.
    """
    return min(num_stored, sequence.num_tokens - 1, sequence.score_from)


def num_usable(groups: Seq[KVGroup], sequence: Sequence, num_hits: int) -> int:
    """Return the number of first blocks of a prompt, at most `num_hits`, after which a sequence can
    continue: every group has the blocks within its window."""
    if not groups:
        return num_hits
    size = groups[0].pool.block_size
    behind = [(group, _num_before(group, sequence, num_hits)) for group in groups]
    for count in range(num_hits, 0, -1):
        start = first_computed(sequence, count * size)
        if all(count - group.first_read(start) <= num[count - 1] for group, num in behind):
            return count
    return 0


def _num_before(group: KVGroup, sequence: Sequence, num_hits: int) -> list[int]:
    """Return, for each first block of a prompt, the number of consecutive blocks up to it that a
    group has."""
    counts, num_last = [], 0
    for key in sequence.block_keys[:num_hits]:
        num_last = num_last + 1 if group.pool.match([key]) else 0
        counts.append(num_last)
    return counts


class BlockSource(NamedTuple):
    """Sequence with a partly equal block, and the number of equal leading tokens."""

    row_index: int
    num_tokens: int


def load_prefix(
    source: "StoredPrefixes | None",
    groups: Seq[KVGroup],
    sequence: Sequence,
    num_hits: int,
    block_source: BlockSource | None,
    step: StepBuilder,
) -> int:
    """Load tokens after the hits of a sequence from the prefix store; return their number.

    The sequence holds the target blocks of the first group. 0 if copying the block of another
    sequence gives about as many.
    """
    num_given = block_source.num_tokens if block_source is not None else 0
    if source is None:
        return 0
    size = groups[0].pool.block_size
    has_windows = any(group.window is not None for group in groups)

    def fits(num_tokens: int) -> bool:
        if has_windows and sequence.score_from < num_tokens:
            return False  # its window begins before the loaded tokens
        return _has_room(groups, sequence.row_index, num_tokens)

    staged = source.find(sequence.request, sequence.block_keys, num_hits, num_given, fits)
    if staged is None:
        return 0
    _load(groups, sequence.row_index, staged, num_hits * size + staged.num_tokens, step)
    return staged.num_tokens


def load_state(
    source: "StoredPrefixes | None",
    groups: Seq[KVGroup],
    states: NoStates,
    sequence: Sequence,
    num_hits: int,
    num_found: int,
    step: StepBuilder,
) -> int:
    """Load a state after more than `num_found` tokens, if the prefix store has one; return the
    number of tokens before the state of the sequence.

    The sequence holds the blocks of the first group up to there, and a slot to write to.
    """

    def fits(num_tokens: int) -> bool:
        is_before_end = num_tokens <= min(sequence.num_tokens - 1, sequence.score_from)
        return is_before_end and _has_room(groups, sequence.row_index, num_tokens)

    if source is None or not states.can_load(sequence.row_index):
        return num_found
    staged = source.find_state(sequence.request, sequence.block_keys, num_hits, num_found, fits)
    if staged is None:
        return num_found
    _load(groups, sequence.row_index, staged.blocks, staged.num_tokens, step)
    states.load(sequence, staged.source, staged.num_tokens, step)
    return staged.num_tokens


def _has_room(groups: Seq[KVGroup], row_index: int, num_tokens: int) -> bool:
    """Return whether enough blocks are free for a sequence to continue after `num_tokens`."""
    end = groups[0].pool.num_blocks_for(num_tokens)
    return all(
        each.num_lacking(row_index, each.first_read(num_tokens - 1), end) <= each.pool.num_free
        for each in groups
    )


def _load(
    groups: Seq[KVGroup], row_index: int, staged: StagedBlocks, num_tokens: int, step: StepBuilder
) -> None:
    """Add transfers of the last blocks of a sequence's first `num_tokens` tokens."""
    end = groups[0].pool.num_blocks_for(num_tokens)
    for group, sources in zip(groups, staged.sources, strict=True):
        # A prompt that ends there computes its last token again.
        group.hold(row_index, group.first_read(num_tokens - 1), end)
        targets = group.tables.held(row_index, end - len(sources))
        step.transfers += [
            BlockTransfer(TransferKind.LOAD, source, target, group.index)
            for source, target in zip(sources, targets, strict=False)
        ]


# Number of youngest sequences that are searched: the plan puts similar prompts side by side.
MAX_BLOCK_SOURCES = 8


def find_block_source(
    running: Seq[Sequence], prompt: tuple[int, ...], hits: Seq[int], groups: Seq[KVGroup]
) -> BlockSource | None:
    """Return the best block to copy for the tokens after the `hits`, or `None`.

    The source holds the same leading blocks, and the next tokens of its prompt begin alike. Tokens
    that the coming step writes in any of the `groups` cannot be copied yet: of a block that one
    group had in the cache, another may have to be computed again. The last token of a prompt is
    always computed, never copied.
    """
    size = groups[0].pool.block_size
    begin = len(hits) * size
    wanted = prompt[begin : min(begin + size, len(prompt) - 1)]
    best: BlockSource | None = None
    for sequence in running[-MAX_BLOCK_SOURCES:] if wanted else ():
        if sequence.request.prompt_token_ids[begin : begin + 1] != wanted[:1]:
            continue  # most sequences, at the least cost
        if hits and (sequence.num_blocks < len(hits) or sequence.block(len(hits) - 1) != hits[-1]):
            continue
        stored = _num_stored_before_step(sequence, len(hits), groups)
        given = sequence.request.prompt_token_ids[begin : begin + stored]
        num_tokens = _num_common(wanted, given)
        if num_tokens > (best.num_tokens if best else 0):
            best = BlockSource(sequence.row_index, num_tokens)
    return best


def _num_stored_before_step(sequence: Sequence, index: int, groups: Seq[KVGroup]) -> int:
    """Return the number of first tokens in the block of a sequence at an index that are in every
    group before the step."""
    size, row_index = groups[0].pool.block_size, sequence.row_index
    if not all(group.tables.has(row_index, index) for group in groups):
        return 0
    unwritten = [
        group.written.first_offset(group.tables.block(row_index, index), size) for group in groups
    ]
    return max(min(*unwritten, sequence.num_stored_tokens - index * size), 0)


def _num_common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        count += 1
    return count
