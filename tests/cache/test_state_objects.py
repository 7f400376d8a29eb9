"""Slots whose states are objects of a library."""

import pytest

from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.cache.kv_cache import OpaqueStates


def test_what_another_sequence_may_read_again_is_not_changed() -> None:
    """Samples go on from their prompt's cache, each with one of its own."""
    states = OpaqueStates(3, 100)
    states.put(0, [1, 2])
    for write_slot in (1, 2):
        own = states.take(0, write_slot)
        assert isinstance(own, list)
        own.append(write_slot)
        states.put(write_slot, own)
    assert states.take(0, 0) == [1, 2]
    assert states.take(1, 1) == [1, 2, 1]
    assert states.num_bytes == 300


def test_nothing_is_moved() -> None:
    states = OpaqueStates(2, 100)
    states.transfer([])
    with pytest.raises(AssertionError, match="nowhere"):
        states.transfer([BlockTransfer(TransferKind.SWAP_OUT, 0, 0, group=1)])
