"""Block tables of one group, and of a group that gives blocks back behind its window."""

import numpy as np

from pagedrun.paged.scheduling.sequence_table import NO_BLOCK, BlockTables


def test_a_table_grows_beyond_its_first_width() -> None:
    tables = BlockTables(2)
    tables.set(1, list(range(20)))
    for block_id in range(20, 50):
        tables.append_one(1, block_id)
    tables.append(1, [90, 91])
    assert tables.held(1) == [*range(50), 90, 91]
    assert tables.held(1, 50) == [90, 91]
    assert tables.held(0) == []


def test_blocks_behind_the_window_are_given_back_once() -> None:
    tables = BlockTables(1)
    tables.set(0, [5, 6, 7, 8])
    assert tables.take_before(0, 2) == [5, 6]
    assert tables.take_before(0, 2) == []
    assert tables.take_before(0, 9) == [7, 8]
    tables.append(0, [3])
    assert (tables.held(0), tables.firsts[0], tables.ends[0]) == ([3], 4, 5)
    assert tables.block(0, 3) == NO_BLOCK


def test_a_kernel_never_sees_a_hole() -> None:
    tables = BlockTables(2)
    tables.set(0, [7, 8], first=3)
    tables.set(1, [9])
    assert tables.gather(np.array([1, 0])).tolist() == [[9, 0, 0, 0, 0], [0, 0, 0, 7, 8]]


def test_a_block_given_back_is_not_taken_for_block_0() -> None:
    tables = BlockTables(2)
    tables.set(0, [0, 1, 2])
    tables.set(1, [0, 1, 2])
    tables.take_before(0, 1)
    assert tables.num_common(0, 1) == 0
    tables.take_before(1, 1)
    assert tables.num_common(0, 1) == 3


def test_a_place_that_is_used_again_begins_without_holes() -> None:
    tables = BlockTables(2)
    tables.set(0, [4, 5])
    tables.take_before(0, 1)
    tables.copy(0, 1)
    assert (tables.held(1), tables.firsts[1]) == ([5], 1)
    tables.set(0, [6])
    assert (tables.held(0), tables.firsts[0]) == ([6], 0)
    tables.add_rows(3)
    assert tables.held(1) == [5]
    assert tables.held(4) == []
