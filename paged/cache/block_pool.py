"""BlockPool: reference counts, free list and prefix map of the blocks of KV memory.

Pure accounting, without tensors or sequences. A block is *held* while its reference count is above
zero and *free* otherwise.

Later use is known from the plan. A key is *pinned* while a later prompt needs it:
because it lies on the path that the next prompt shares with the last one, or because a preempted
sequence will resume. Only pinned blocks are published under their key for others to find; a free
one stays *cached*. After its last use it becomes an empty block at once. If the pool is too small,
the cached block with the most distant use is evicted first: the end of the path, and only then
blocks pinned by waiting sequences, which run earlier.

`SwapSpace` does the accounting of host blocks, and a `BlockTransfer` describes bytes to move.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.values.planned_request import BlockKey


@dataclass(slots=True)
class PoolCounts:
    """Counters of a pool since it was built, in blocks."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    copies: int = 0
    peak_held: int = 0
    peak_shared: int = 0


class BlockPool:
    """Fixed number of blocks with reference counts, a free list and a prefix map.

    Every operation costs O(1) per block. Operations without enough free blocks return `None` and
    change nothing, so that the scheduler can wait or preempt.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a pool needs at least one block of at least one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = PoolCounts()
        self._ref_counts = array("i", [0]) * num_blocks
        self._fill = array("i", [0]) * num_blocks  # tokens stored in each block
        # The same memory for whole steps at once; one by one, an array is faster.
        self._ref_counts_seen = np.frombuffer(self._ref_counts, dtype=np.int32)
        self._fills_seen = np.frombuffer(self._fill, dtype=np.int32)
        self._key_of: dict[int, BlockKey] = {}
        self._block_of: dict[bytes, int] = {}
        # Free blocks without content: last freed, first taken, so that memory once touched is used
        # again before new pages are.
        self._empty = list(range(num_blocks - 1, -1, -1))
        # Free blocks with a prefix, in order of eviction. Holders of a block also hold those before
        # it, so the end of a path is released before its beginning; and the sequence preempted
        # first resumes last. A linked dict removes from the middle in O(1).
        self._cached_for_path: OrderedDict[int, None] = OrderedDict()
        self._cached_for_waiting: OrderedDict[int, None] = OrderedDict()
        self._path: list[bytes] = []  # digests that the next prompt pins, first block first
        self._on_path: set[bytes] = set()
        self._num_waiting: dict[bytes, int] = {}  # digest → waiting sequences that pin it
        self._num_shared = 0
        self._num_tokens_held = 0

    @property
    def num_free(self) -> int:
        """Blocks without holders, including those with a cached prefix."""
        return len(self._empty) + self.num_cached

    @property
    def num_empty(self) -> int:
        """Free blocks without a cached prefix."""
        return len(self._empty)

    @property
    def num_held(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - self.num_free

    @property
    def num_shared(self) -> int:
        """Blocks with more than one holder."""
        return self._num_shared

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a prefix."""
        return len(self._cached_for_path) + len(self._cached_for_waiting)

    @property
    def num_tokens_held(self) -> int:
        """Tokens stored in held blocks; a shared block counts once."""
        return self._num_tokens_held

    @property
    def ref_counts(self) -> "array[int]":
        """Copy of the reference count of every block."""
        return self._ref_counts[:]

    @property
    def fills(self) -> "array[int]":
        """Copy of the number of tokens in every block; a free block with tokens is cached."""
        return self._fill[:]

    def ref_count(self, block_id: int) -> int:
        """Return the number of block tables that hold a block."""
        return self._ref_counts[block_id]

    def ref_counts_of(self, block_ids: Int32s | Int64s) -> Int32s:
        """Return the number of block tables that hold each block."""
        counts: Int32s = self._ref_counts_seen[block_ids]
        return counts

    @property
    def published(self) -> list[int]:
        """Blocks that later prompts can find."""
        return list(self._key_of)

    def is_published(self, block_id: int) -> bool:
        """Return whether later prompts can find this block."""
        return block_id in self._key_of

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks of `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` blocks with one holder each; return `None` if fewer are free."""
        if count > self.num_free:
            return None
        block_ids = [self._take_free() for _ in range(count)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        self._note_peaks()
        return block_ids

    def match(self, keys: Iterable[BlockKey]) -> list[int]:
        """Return the blocks of the longest published prefix of `keys`, without a reference.

        Blocks are looked up by digest; then tokens and parent are compared.
        """
        matched: list[int] = []
        for key in keys:
            block_id = self._block_of.get(key.digest)
            if block_id is None:
                break
            known = self._key_of[block_id]
            if known is not key and known != key:
                break
            matched.append(block_id)
        return matched

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """Return the number of free blocks among these."""
        return [self._ref_counts[block_id] for block_id in block_ids].count(0)

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one holder to each block; a cached free block is taken off the free list."""
        for block_id in block_ids:
            count = self._ref_counts[block_id]
            if count == 0:
                self._uncache(block_id)
                self._num_tokens_held += self._fill[block_id]
            elif count == 1:
                self._num_shared += 1
            self._ref_counts[block_id] = count + 1
        self._note_peaks()

    def release(self, block_ids: Sequence[int]) -> None:
        """Remove one holder of each block; a block without holders becomes free.

        Last to first, so that the tail of a prefix, useless without its head, is reused first.
        """
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id]
            if count <= 0:
                raise ValueError(f"block {block_id} is released more often than it was taken")
            self._ref_counts[block_id] = count - 1
            if count == 2:
                self._num_shared -= 1
            elif count == 1:
                self._num_tokens_held -= self._fill[block_id]
                key = self._key_of.get(block_id)
                if key is None:
                    self._fill[block_id] = 0
                    self._empty.append(block_id)
                else:
                    self._cache(block_id, key.digest)

    def pin_path(self, keys: Sequence[BlockKey]) -> None:
        """Pin the blocks that the next prompt shares with the last one.

        Replaces the previous path; its blocks that are not pinned otherwise are released.
        """
        path = self._path
        while path and (len(path) > len(keys) or path[-1] != keys[len(path) - 1].digest):
            digest = path.pop()
            self._on_path.discard(digest)
            self._settle(digest)
        for key in keys[len(path) :]:
            path.append(key.digest)
            self._on_path.add(key.digest)
            self._settle(key.digest)

    def pin_only(self, keys: Sequence[BlockKey]) -> None:
        """Replace the path by these blocks, which need not be consecutive."""
        before = self._path
        self._path = [key.digest for key in keys]
        self._on_path = set(self._path)
        for digest in before:
            if digest not in self._on_path:
                self._settle(digest)

    def pin(self, keys: Iterable[BlockKey]) -> None:
        """Pin the blocks of `keys` for one more waiting sequence."""
        for key in keys:
            count = self._num_waiting.get(key.digest, 0)
            self._num_waiting[key.digest] = count + 1
            if count == 0:
                self._settle(key.digest)

    def unpin(self, keys: Iterable[BlockKey]) -> None:
        """Undo one `pin`: the sequence has resumed or finished."""
        for key in keys:
            count = self._num_waiting[key.digest]
            if count > 1:
                self._num_waiting[key.digest] = count - 1
            else:
                del self._num_waiting[key.digest]
                self._settle(key.digest)

    def num_waiting_for(self) -> dict[bytes, int]:
        """Return how many waiting sequences pin each digest."""
        return dict(self._num_waiting)

    def is_pinned(self, key: BlockKey) -> bool:
        """Return whether a later prompt or a waiting sequence needs `key`."""
        return key.digest in self._on_path or key.digest in self._num_waiting

    def publish(self, block_id: int, key: BlockKey) -> None:
        """Publish a block under `key`; its content is final from now on.

        Ignored if the key is not pinned or another block is published under it.
        """
        if self._ref_counts[block_id] == 0:
            raise ValueError(f"block {block_id} is free and cannot be published")
        if not self.is_pinned(key):
            return
        if key.digest not in self._block_of and block_id not in self._key_of:
            self._block_of[key.digest] = block_id
            self._key_of[block_id] = key

    def retract(self, block_id: int) -> None:
        """Unpublish a block whose content is not needed."""
        key = self._key_of.pop(block_id, None)
        if key is not None:
            del self._block_of[key.digest]
            if self._ref_counts[block_id] == 0:
                self._uncache(block_id)
                self._fill[block_id] = 0
                self._empty.append(block_id)

    def retract_key(self, key: BlockKey) -> None:
        """Unpublish the block under a key, if there is one."""
        for block_id in self.match([key]):
            self.retract(block_id)

    def fork_for_write(self, block_id: int) -> int | None:
        """Replace a shared block by a new one for one of its holders (copy-on-write).

        Returns the new block; the caller copies the bytes. Returns `None` if no block is free.
        """
        if self._ref_counts[block_id] < 2:
            raise ValueError(f"block {block_id} is not shared; it can be written as it is")
        new = self.allocate(1)
        if new is None:
            return None
        self.release([block_id])
        self.record_fill(new[0], self._fill[block_id])
        self.counts.copies += 1
        return new[0]

    def record_fill(self, block_id: int, num_tokens: int) -> None:
        """Record that a held block stores its first `num_tokens` tokens."""
        grown = num_tokens - self._fill[block_id]
        if grown > 0:
            self._fill[block_id] = num_tokens
            self._num_tokens_held += grown

    def record_fills(self, block_ids: Int32s, num_tokens: Int64s) -> None:
        """Record the tokens of many distinct held blocks; see `record_fill`."""
        grown = np.maximum(num_tokens - self._fills_seen[block_ids], 0)
        self._fills_seen[block_ids] += grown.astype(np.int32)
        self._num_tokens_held += int(grown.sum())

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Check that free + held = total, and that reference counts match the tables.

        Raises `AssertionError` naming the first violated invariant.
        """
        holders = Counter(block_id for table in block_tables for block_id in table)
        for block_id, count in enumerate(self._ref_counts):
            assert count == holders[block_id], (
                f"block {block_id}: {count} references, {holders[block_id]} in tables"
            )
        cached = [*self._cached_for_path, *self._cached_for_waiting]
        free = [*self._empty, *cached]
        assert len(free) == len(set(free)), "a block is twice on the free list"
        assert all(self._ref_counts[block_id] == 0 for block_id in free), "a held block is free"
        held = sum(count > 0 for count in self._ref_counts)
        assert len(free) + held == self.num_blocks, "free + held is not the total"
        assert self._num_shared == sum(count > 1 for count in self._ref_counts), "shared count"
        assert {key.digest: block_id for block_id, key in self._key_of.items()} == self._block_of
        assert set(cached) <= set(self._key_of), "a cached block has no key"
        assert all(map(self.is_pinned, self._key_of.values())), "a published block is not pinned"
        for block_id in cached:
            waited_for = self._key_of[block_id].digest in self._num_waiting
            assert (block_id in self._cached_for_waiting) == waited_for, "cached in the wrong line"
        assert len(self._path) == len(self._on_path), "a path names a block twice"
        assert self._on_path == set(self._path), "path"
        assert all(count > 0 for count in self._num_waiting.values()), "waiting"
        assert not set(self._empty) & set(self._key_of), "an empty block has a key"
        assert all(0 <= fill <= self.block_size for fill in self._fill), "fill out of range"
        held_tokens = sum(f for f, c in zip(self._fill, self._ref_counts, strict=True) if c)
        assert self._num_tokens_held == held_tokens, "tokens held"

    def _take_free(self) -> int:
        if self._empty:
            return self._empty.pop()
        line = self._cached_for_path or self._cached_for_waiting
        block_id, _ = line.popitem(last=False)
        del self._block_of[self._key_of.pop(block_id).digest]
        self._fill[block_id] = 0
        self.counts.evictions += 1
        return block_id

    def _settle(self, digest: bytes) -> None:
        """Move the block under `digest` to the free list of its current pins."""
        block_id = self._block_of.get(digest)
        if block_id is None:
            return
        if not self.is_pinned(self._key_of[block_id]):
            self.retract(block_id)
        elif self._ref_counts[block_id] == 0:
            waited_for = digest in self._num_waiting
            if waited_for != (block_id in self._cached_for_waiting):
                self._uncache(block_id)
                self._cache(block_id, digest)

    def _cache(self, block_id: int, digest: bytes) -> None:
        waited_for = digest in self._num_waiting
        line = self._cached_for_waiting if waited_for else self._cached_for_path
        line[block_id] = None

    def _uncache(self, block_id: int) -> None:
        line = self._cached_for_path
        del (line if block_id in line else self._cached_for_waiting)[block_id]

    def _note_peaks(self) -> None:
        self.counts.peak_held = max(self.counts.peak_held, self.num_held)
        self.counts.peak_shared = max(self.counts.peak_shared, self._num_shared)


class SwapSpace:
    """Free list of `num_blocks` unshared blocks of host memory.

    Most runs preempt no sequence, and a small model has millions of blocks in a gigabyte: blocks
    that were never taken are a count, not a list.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_touched = 0  # blocks from here on were never taken
        self._given_back: list[int] = []

    @staticmethod
    def num_blocks_in(num_bytes: int, bytes_per_block: int) -> int:
        """Return the number of blocks that fit; 0 for blocks without bytes."""
        return num_bytes // bytes_per_block if bytes_per_block else 0

    @property
    def num_free(self) -> int:
        """Blocks that can be taken."""
        return self.num_blocks - self._num_touched + len(self._given_back)

    def take(self, count: int) -> list[int] | None:
        """Allocate `count` blocks; return `None` if fewer are free."""
        if count > self.num_free:
            return None
        return [self._take_one() for _ in range(count)]

    def give_back(self, block_ids: list[int]) -> None:
        """Free blocks."""
        self._given_back.extend(block_ids)

    def _take_one(self) -> int:
        if self._given_back:
            return self._given_back.pop()
        self._num_touched += 1
        return self._num_touched - 1


class TransferKind(Enum):
    """Source and target memory of a transfer."""

    COPY = "copy"  # pool → pool, for copy-on-write
    SWAP_OUT = "swap_out"  # pool → host
    SWAP_IN = "swap_in"  # host → pool
    LOAD = "load"  # staged from the prefix store → pool


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """Copy of one block in one group of layers. Transfers run in the order in which they were
    scheduled: a block freed by one may be the target of the next."""

    kind: TransferKind
    source: int
    target: int
    group: int = 0


class StagedBlocks(NamedTuple):
    """Blocks ready to be moved into the pool.

    `sources`: of `TransferKind.LOAD`, by group of layers, in the order of the tokens. Those of the
    first group hold `num_tokens` tokens, the last block perhaps partly; another group has the last
    blocks, as far back as its window reaches.
    """

    sources: list[list[int]]
    num_tokens: int


class StagedState(NamedTuple):
    """State of recurrent layers after the first `num_tokens` tokens of a prompt, ready to be moved
    into a slot; `blocks`: blocks before that point that the prompt lacks."""

    source: int
    num_tokens: int
    blocks: StagedBlocks
