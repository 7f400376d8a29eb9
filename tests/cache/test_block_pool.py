"""Single behaviours of BlockPool, and the keys that name a block's content."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.values.planned_request import ROOT_DIGEST, BlockKey


def published_pool(
    tokens: list[int], block_size: int, spare: int = 0
) -> tuple[BlockPool, list[int]]:
    """A pool in which `tokens` were computed, published and released."""
    keys = BlockKey.chain(tokens, block_size)
    pool = BlockPool(len(keys) + spare, block_size)
    pool.pin(keys)
    table = pool.allocate(len(keys))
    assert table is not None
    for block_id, key in zip(table, keys, strict=True):
        pool.record_fill(block_id, block_size)
        pool.publish(block_id, key)
    pool.release(table)
    return pool, table


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0), (-1, 4)])
def test_a_pool_without_room_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(num_blocks, block_size)


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    tokens = [1, 2, 3, 4, 5, 6]
    pool, table = published_pool(tokens, 2)
    taken = pool.allocate(1)
    assert taken == [table[-1]]
    assert pool.match(BlockKey.chain(tokens, 2)) == table[:2]


def test_what_waiting_sequences_pin_is_evicted_last() -> None:
    """They come before the next row of the plan."""
    pool = BlockPool(2, 1)
    [[awaited], [planned]] = (BlockKey.chain([token], 1) for token in (7, 8))
    pool.pin([awaited])
    pool.pin_path([planned])
    for key in (awaited, planned):
        block = pool.allocate(1)
        assert block is not None
        pool.publish(block[0], key)
        pool.release(block)
    pool.allocate(1)
    assert len(pool.match([awaited])) == 1
    assert pool.match([planned]) == []


def test_a_block_is_empty_after_its_last_use() -> None:
    tokens = [1, 2, 3, 4, 5, 6]
    pool, table = published_pool(tokens, 2)
    keys = BlockKey.chain(tokens, 2)
    pool.pin_path(keys[:2])
    pool.unpin(keys)
    assert pool.match(keys) == table[:2]
    pool.share(table[:2])
    pool.pin_path(keys[:1])
    assert pool.match(keys) == table[:1]  # the second lost its name while it is held
    pool.release(table[:2])
    assert (pool.num_cached, pool.num_free) == (1, 3)
    pool.pin_path(())
    assert (pool.num_cached, pool.num_free) == (0, 3)
    pool.check([])


def test_what_is_not_pinned_is_not_published() -> None:
    pool = BlockPool(1, 2)
    [key] = BlockKey.chain([1, 2], 2)
    held = pool.allocate(1)
    assert held is not None
    pool.publish(held[0], key)
    assert not pool.is_published(held[0])
    pool.release(held)
    assert pool.num_cached == 0


def test_the_second_block_under_one_key_stays_private() -> None:
    pool, _ = published_pool([1, 2], 2, spare=1)
    [key] = BlockKey.chain([1, 2], 2)
    [first] = pool.match([key])
    pool.share([first])
    twin = pool.allocate(1)
    assert twin is not None
    pool.publish(twin[0], key)
    assert pool.match([key]) == [first]
    assert not pool.is_published(twin[0])
    pool.release(twin)
    assert pool.num_cached == 0  # a private block is of no use to anyone else


def test_a_block_keeps_its_first_key() -> None:
    """A second one would make the pool forget which of the two to take back on eviction."""
    pool, [block_id] = published_pool([1, 2], 2)
    [other] = BlockKey.chain([5, 6], 2)
    pool.pin([other])
    pool.share([block_id])
    pool.publish(block_id, other)
    assert pool.match([other]) == []
    assert pool.match(BlockKey.chain([1, 2], 2)) == [block_id]
    pool.check([[block_id]])


def test_a_retracted_block_is_not_found_but_stays_with_its_holders() -> None:
    pool, table = published_pool([1, 2, 3, 4], 2)
    keys = BlockKey.chain([1, 2, 3, 4], 2)
    pool.share(table)
    pool.retract(table[0])
    assert pool.match(keys) == []
    assert pool.ref_count(table[0]) == 1
    pool.release(table)
    assert pool.num_cached == 1  # the second block; the first went to the empty ones
    assert pool.num_free == 2


def test_misuse_is_refused() -> None:
    pool = BlockPool(2, 4)
    [key] = BlockKey.chain([1, 2, 3, 4], 4)
    with pytest.raises(ValueError, match="free and cannot be published"):
        pool.publish(0, key)
    with pytest.raises(ValueError, match="more often"):
        pool.release([0])
    held = pool.allocate(1)
    assert held is not None
    with pytest.raises(ValueError, match="not shared"):
        pool.fork_for_write(held[0])


def test_check_sees_a_table_that_the_pool_does_not_know() -> None:
    pool = BlockPool(2, 4)
    held = pool.allocate(1)
    assert held is not None
    with pytest.raises(AssertionError, match="1 references, 2 in tables"):
        pool.check([held, held])


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────


def test_the_digest_is_the_documented_one() -> None:
    first, second = BlockKey.chain([1, 258, 70_000, 2**31 - 1, 9], 2)
    assert first.parent == ROOT_DIGEST
    assert first.digest == sha256(ROOT_DIGEST + bytes([1, 0, 0, 0, 2, 1, 0, 0])).digest()
    tokens = (70_000).to_bytes(4, "little") + (2**31 - 1).to_bytes(4, "little")
    assert second.digest == sha256(first.digest + tokens).digest()
    assert second.parent == first.digest
    assert second.token_ids == (70_000, 2**31 - 1)  # and the ninth token fills no block


@given(tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=24), data=st.data())
def test_a_digest_depends_on_every_token_before_it(tokens: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    place = data.draw(st.integers(0, len(tokens) - 1))
    changed = list(tokens)
    changed[place] = data.draw(st.integers(0, 2**31 - 1).filter(lambda t: t != tokens[place]))
    before, after = BlockKey.chain(tokens, size), BlockKey.chain(changed, size)
    assert len(before) == len(after) == len(tokens) // size
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (old == new) == (index < place // size)
        assert (old.digest == new.digest) == (index < place // size)


def test_a_digest_depends_on_the_order_of_tokens_and_of_blocks() -> None:
    orders = [[1, 2, 3, 4], [2, 1, 3, 4], [3, 4, 1, 2], [4, 3, 2, 1], [1, 2, 4, 3]]
    assert len({BlockKey.chain(order, 2)[-1].digest for order in orders}) == len(orders)


@given(tokens=st.lists(st.integers(0, 300), min_size=1, max_size=16))
def test_no_two_splits_of_a_prompt_share_a_digest(tokens: list[int]) -> None:
    """Neither [1, 2] + [3] and [1] + [2, 3], nor a block and the same tokens elsewhere."""
    digests: dict[bytes, tuple[tuple[int, ...], ...]] = {}
    for size in range(1, len(tokens) + 1):
        pieces: tuple[tuple[int, ...], ...] = ()
        for key in BlockKey.chain(tokens, size):
            pieces = (*pieces, key.token_ids)
            assert digests.setdefault(key.digest, pieces) == pieces


def test_a_forged_digest_is_not_believed() -> None:
    """Two prompts whose digests collide do not get each other's keys and values."""
    tokens = [1, 2, 3, 4]
    pool, table = published_pool(tokens, 2)
    first, second = BlockKey.chain(tokens, 2)
    assert pool.match([first, second]) == table
    other_tokens = BlockKey(first.digest, first.parent, (9, 9))
    assert pool.match([other_tokens, second]) == []
    assert pool.match([first, BlockKey(second.digest, second.parent, (9, 9))]) == table[:1]
    # The last block's tokens agree, but it follows another prefix.
    assert pool.match([first, BlockKey(second.digest, b"another parent", (3, 4))]) == table[:1]


def test_a_colliding_block_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant:
        def __init__(self, _: bytes) -> None: ...

        def digest(self) -> bytes:
            return b"all alike"

    monkeypatch.setattr("pagedrun.paged.values.planned_request.hashlib.sha256", Constant)
    [one] = BlockKey.chain([1, 2], 2)
    [two] = BlockKey.chain([5, 6], 2)
    assert one.digest == two.digest
    pool = BlockPool(2, 2)
    pool.pin([one, two])
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.publish(blocks[0], one)
    pool.publish(blocks[1], two)
    assert pool.match([one]) == blocks[:1]
    assert pool.match([two]) == []
    pool.release(blocks)
    pool.check([])
