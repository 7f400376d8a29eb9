"""BlockPool against a plain model of it, on random walks."""

from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.values.planned_request import BlockKey

TOKENS = st.lists(st.integers(0, 2), max_size=14)  # few token ids, so that prefixes often agree


def observed(pool: BlockPool) -> tuple[Any, ...]:
    """Everything that can be seen of a pool from outside."""
    blocks = range(pool.num_blocks)
    return (
        pool.num_free,
        pool.num_held,
        pool.num_shared,
        pool.num_cached,
        pool.num_tokens_held,
        [pool.ref_count(block_id) for block_id in blocks],
        [pool.is_published(block_id) for block_id in blocks],
        str(pool.counts),
    )


class PoolMachine(RuleBasedStateMachine):
    """Tables of tokens live in a pool; `content` plays the memory, the rest is the model.

    `content[b]` is every token from the start of the prompt to the last one stored in block b:
    what keys and values depend on.
    """

    @initialize(num_blocks=st.integers(1, 9), block_size=st.sampled_from([1, 2, 3, 4]))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.size = block_size
        self.tables: list[tuple[list[int], list[int]]] = []  # (token ids, block ids)
        self.content: dict[int, tuple[int, ...]] = {}
        self.fill: dict[int, int] = {}
        self.published: dict[tuple[int, ...], int] = {}  # content → block
        # Free published blocks, in the order of their release, or of being pinned otherwise.
        self.for_path: OrderedDict[int, None] = OrderedDict()
        self.for_waiting: OrderedDict[int, None] = OrderedDict()
        self.path: set[tuple[int, ...]] = set()
        self.waiting: list[list[int]] = []  # prompts of sequences that come back
        self.evictions = self.copies = 0
        self.peak_held = self.peak_shared = 0

    # ── The model ───────────────────────────────────────────────────────────────────────────────

    @property
    def holders(self) -> Counter[int]:
        return Counter(block_id for _, table in self.tables for block_id in table)

    @property
    def cached(self) -> list[int]:
        """Free published blocks, the first to go first."""
        return [*self.for_path, *self.for_waiting]

    def forget(self, block_id: int) -> None:
        self.for_path.pop(block_id, None)
        self.for_waiting.pop(block_id, None)

    def prefixes(self, tokens: list[int]) -> list[tuple[int, ...]]:
        return [tuple(tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)]

    def is_waited_for(self, content: tuple[int, ...]) -> bool:
        return any(content in self.prefixes(tokens) for tokens in self.waiting)

    def settle(self, contents: list[tuple[int, ...]], holders: Counter[int]) -> None:
        """Bring what is published into line with what is pinned by now."""
        for content in contents:
            block_id = self.published.get(content)
            if block_id is None:
                continue
            waited_for = self.is_waited_for(content)
            if not waited_for and content not in self.path:
                del self.published[content]
                self.forget(block_id)
            elif not holders[block_id]:
                line = self.for_waiting if waited_for else self.for_path
                if block_id not in line:
                    self.forget(block_id)
                    line[block_id] = None

    def take(self, count: int, holders: Counter[int]) -> list[int] | None:
        """Allocate, and check the answer against the model."""
        free = set(range(self.pool.num_blocks)) - set(holders)
        before = observed(self.pool)
        got = self.pool.allocate(count)
        if count > len(free):
            assert got is None
            assert observed(self.pool) == before, "a refused allocation changed something"
            return None
        assert got is not None
        assert len(got) == len(set(got)) == count
        for block_id in got:
            assert block_id in free, "allocated a block that somebody holds"
            empty = free - set(self.cached)
            if empty:
                assert block_id in empty, "evicted a cached block while an empty one was free"
            else:
                assert block_id == self.cached[0], "not the one whose use is farthest away"
                self.forget(block_id)
                del self.published[self.content[block_id]]
                self.evictions += 1
            free.remove(block_id)
            self.content.pop(block_id, None)
            self.fill[block_id] = 0
        self.note_peaks(holders + Counter(got))
        return got

    def note_peaks(self, holders: Counter[int]) -> None:
        self.peak_held = max(self.peak_held, len(holders))
        self.peak_shared = max(self.peak_shared, sum(count > 1 for count in holders.values()))

    def write(self, table: list[int], tokens: list[int], start: int) -> None:
        """Store tokens from `start` on; every block touched must have this one holder only."""
        for index in range(start // self.size, -(-len(tokens) // self.size)):
            block_id = table[index]
            assert self.pool.ref_count(block_id) == 1, "a block with two holders is written"
            assert not self.pool.is_published(block_id), "a published block is written"
            end = min(len(tokens), (index + 1) * self.size)
            self.content[block_id] = tuple(tokens[:end])
            self.fill[block_id] = end - index * self.size
            self.pool.record_fill(block_id, self.fill[block_id])

    # ── Rules ───────────────────────────────────────────────────────────────────────────────────

    @rule(tokens=TOKENS)
    def add_table(self, tokens: list[int]) -> None:
        """What admission does: match, share, allocate the rest."""
        keys = BlockKey.chain(tokens, self.size)
        before = observed(self.pool)
        hits = self.pool.match(keys)
        assert observed(self.pool) == before, "match took something"
        expected = []
        for index in range(len(keys)):
            block_id = self.published.get(tuple(tokens[: (index + 1) * self.size]))
            if block_id is None:
                break
            expected.append(block_id)
        assert hits == expected
        for index, block_id in enumerate(hits):
            assert self.content[block_id] == tuple(tokens[: (index + 1) * self.size])
        holders = self.holders
        free_hits = [block_id for block_id in hits if not holders[block_id]]
        assert self.pool.num_free_among(hits) == len(free_hits)
        missing = self.pool.num_blocks_for(len(tokens)) - len(hits)
        if missing + len(free_hits) > self.pool.num_free:
            return
        self.pool.share(hits)
        for block_id in free_hits:
            self.forget(block_id)
        holders += Counter(hits)
        self.note_peaks(holders)
        new = self.take(missing, holders)
        assert new is not None
        table = [*hits, *new]
        self.tables.append((list(tokens), table))
        self.write(table, tokens, len(hits) * self.size)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        tokens, table = data.draw(st.sampled_from(self.tables))
        keys = BlockKey.chain(tokens, self.size)
        for index, key in enumerate(keys):
            content = tuple(tokens[: (index + 1) * self.size])
            if content not in self.path and not self.is_waited_for(content):
                pass
            elif content not in self.published and not self.pool.is_published(table[index]):
                self.published[content] = table[index]
            self.pool.publish(table[index], key)

    @precondition(lambda self: 0 < len(self.tables) < 12)
    @rule(data=st.data())
    def fork_table(self, data: st.DataObject) -> None:
        tokens, table = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append((list(tokens), list(table)))
        self.note_peaks(self.holders)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.integers(0, 2))
    def append_token(self, data: st.DataObject, token: int) -> None:
        """What decoding does: own the last block, or take a new one, then write."""
        tokens, table = data.draw(st.sampled_from(self.tables))
        place = len(tokens)
        if place % self.size == 0:
            new = self.take(1, self.holders)
            if new is None:
                return
            table += new
        elif self.pool.ref_count(table[-1]) > 1:
            shared = table[-1]
            if not self.copy_on_write(shared, table):
                return
        tokens.append(token)
        self.write(table, tokens, place)

    def copy_on_write(self, shared: int, table: list[int]) -> bool:
        holders = self.holders
        before = observed(self.pool)
        own = self.pool.fork_for_write(shared)
        if len(holders) == self.pool.num_blocks:
            assert own is None
            assert observed(self.pool) == before
            return False
        assert own is not None
        assert not holders[own], "copy-on-write gave away a held block"
        if own in self.cached:
            assert own == self.cached[0]
            assert len(holders) + len(self.cached) == self.pool.num_blocks
            self.forget(own)
            del self.published[self.content[own]]
            self.evictions += 1
        self.note_peaks(holders + Counter([own]))
        self.content[own] = self.content[shared]
        self.fill[own] = self.fill[shared]
        self.copies += 1
        table[-1] = own
        assert self.pool.num_tokens_held == sum(self.fill[b] for b in self.holders)
        return True

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def drop_table(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.tables) - 1))
        _, table = self.tables.pop(place)
        self.pool.release(table)
        holders = self.holders
        for block_id in reversed(table):
            if not holders[block_id] and block_id in self.published.values():
                waited_for = self.is_waited_for(self.content[block_id])
                (self.for_waiting if waited_for else self.for_path)[block_id] = None

    @rule(tokens=TOKENS, of_last=st.booleans(), length=st.integers(0, 14))
    def pin_path(self, tokens: list[int], of_last: bool, length: int) -> None:
        """Often the beginning of a prompt that was just admitted."""
        if self.tables and of_last:
            tokens = self.tables[-1][0][:length]
        self.pool.pin_path(BlockKey.chain(tokens, self.size))
        before, self.path = self.path, set(self.prefixes(tokens))
        # What leaves the path is settled from its end, what comes to it from its beginning.
        gone = sorted(before - self.path, key=len, reverse=True)
        self.settle([*gone, *sorted(self.path - before, key=len)], self.holders)

    @precondition(lambda self: len(self.waiting) < 4)
    @rule(tokens=TOKENS)
    def pin(self, tokens: list[int]) -> None:
        self.pool.pin(BlockKey.chain(tokens, self.size))
        fresh = [each for each in self.prefixes(tokens) if not self.is_waited_for(each)]
        self.waiting.append(tokens)
        self.settle(fresh, self.holders)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        tokens = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.pool.unpin(BlockKey.chain(tokens, self.size))
        self.settle(self.prefixes(tokens), self.holders)

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        content = data.draw(st.sampled_from(sorted(self.published)))
        block_id = self.published.pop(content)
        self.pool.retract(block_id)
        self.forget(block_id)

    @rule(count=st.integers(0, 10))
    def allocate_and_release(self, count: int) -> None:
        """Blocks that are taken and given back unwritten are plain free blocks again."""
        holders = self.holders
        got = self.take(count, holders)
        if got is not None:
            self.pool.release(got)

    @invariant()
    def books_balance(self) -> None:
        pool, holders = self.pool, self.holders
        pool.check(table for _, table in self.tables)
        assert pool.num_held == len(holders)
        assert pool.num_free == pool.num_blocks - len(holders)
        assert pool.num_shared == sum(count > 1 for count in holders.values())
        assert pool.num_cached == len(self.cached)
        assert pool.num_tokens_held == sum(self.fill[block_id] for block_id in holders)
        published = set(self.published.values())
        assert published == {b for b in range(pool.num_blocks) if pool.is_published(b)}
        assert (pool.counts.evictions, pool.counts.copies) == (self.evictions, self.copies)
        assert pool.counts.peak_held == self.peak_held
        assert pool.counts.peak_shared == self.peak_shared

    @invariant()
    def every_table_reads_its_own_tokens(self) -> None:
        for tokens, table in self.tables:
            for index, block_id in enumerate(table):
                end = min(len(tokens), (index + 1) * self.size)
                assert self.content[block_id][:end] == tuple(tokens[:end])


class LongPoolMachine(PoolMachine):
    """The same rules, for many more and longer walks."""


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolLong = pytest.mark.long(LongPoolMachine.TestCase)
TestPoolLong.settings = settings(max_examples=2000, stateful_step_count=80, deadline=None)
