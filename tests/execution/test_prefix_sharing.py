"""The groups of rows that read together, against a walk over every row and partition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kernels.array_types import Int32s
from pagedrun.kernels.attention_inputs import PrefixGroups
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.prefix_sharing import PrefixSharing, without_rows

P = PARTITION_TOKENS
Change = Callable[[Int32s, Int32s, Int32s], tuple[Int32s, Int32s, Int32s]]


@st.composite
def tables_and_rows(
    draw: st.DrawFn,
) -> tuple[Int32s, Int32s, Int32s, int]:
    """Draw block tables of a small tree of prefixes, and rows that read them."""
    block_size = draw(st.sampled_from([32, 64, P, 2 * P]))
    width = 6 * P // block_size
    num_tables = draw(st.integers(1, 6))
    tables: list[list[int]] = []
    fresh = iter(range(1, 10_000))
    for _ in range(num_tables):
        parent = draw(st.sampled_from(tables)) if tables else []
        common = draw(st.integers(0, len(parent)))
        tables.append([*parent[:common], *(next(fresh) for _ in range(width - common))])
    rows = draw(st.lists(st.integers(0, num_tables - 1), min_size=1, max_size=9))
    shared = draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
    int32 = np.int32
    return np.array(tables, int32), np.array(rows, int32), np.array(shared, int32), block_size


def coverage(groups: PrefixGroups) -> dict[tuple[int, int], int]:
    """Return, for each row and partition, the number of its group."""
    found = {}
    starts = groups.row_starts.tolist()
    for group in range(len(groups.table_rows)):
        for row in groups.rows[starts[group] : starts[group + 1]].tolist():
            for part in range(
                int(groups.first_partitions[group]), int(groups.last_partitions[group])
            ):
                assert (row, part) not in found, "a row reads a partition twice"
                found[row, part] = group
    return found


@given(tables_and_rows())
def test_every_shared_partition_is_read_once_per_block_and_for_each_row(
    case: tuple[Int32s, Int32s, Int32s, int],
) -> None:
    tables, table_rows, shared, block_size = case
    groups = PrefixSharing(share=True).groups(tables, table_rows, shared, block_size)
    if not shared.any():
        assert groups is None
        return
    assert groups is not None
    found = coverage(groups)
    assert set(found) == {(row, p) for row, count in enumerate(shared) for p in range(count)}
    assert groups.first_partitions.tolist() == sorted(groups.first_partitions.tolist())
    readers: dict[tuple[int, int], set[int]] = {}
    for (row, part), group in found.items():
        own = tables[table_rows[row], : -(-(part + 1) * P // block_size)]
        read = tables[int(groups.table_rows[group]), : len(own)]
        assert own.tolist() == read.tolist(), "a group reads other blocks than its row has"
        readers.setdefault((part, int(own[-1])), set()).add(group)
    assert all(len(each) == 1 for each in readers.values()), "one partition is read twice"


@given(tables_and_rows())
def test_without_sharing_every_row_reads_alone(
    case: tuple[Int32s, Int32s, Int32s, int],
) -> None:
    tables, table_rows, shared, block_size = case
    groups = PrefixSharing(share=False).groups(tables, table_rows, shared, block_size)
    if groups is None:
        assert not shared.any()
        return
    assert len(groups.rows) == len(groups.table_rows) == np.count_nonzero(shared)
    found = coverage(groups)
    assert set(found) == {(row, p) for row, count in enumerate(shared) for p in range(count)}


# Four rows of two partitions, and a private block behind them; a block is half a partition.
TABLES = np.array([[1, 2, 3, 4, 9], [1, 2, 3, 4, 8], [1, 2, 5, 6, 7], [1, 2, 5, 6, 0]], np.int32)
ROWS = np.arange(4, dtype=np.int32)
SHARED = np.array([2, 2, 2, 1], np.int32)


def test_the_groups_of_the_step_before_are_kept_while_tables_grow() -> None:
    sharing = PrefixSharing(share=True)
    groups = sharing.groups(TABLES, ROWS, SHARED, P // 2)
    grown = np.pad(TABLES, ((0, 0), (0, 1)), constant_values=20)
    grown[3, 3:] = 30  # in its second partition, which it does not read with others
    assert sharing.groups(grown, ROWS.copy(), SHARED.copy(), P // 2) is groups


@pytest.mark.parametrize(
    "change",
    [
        lambda tables, rows, shared: (tables, rows[:3], shared[:3]),  # the last one leaves
        lambda tables, rows, shared: (tables, rows[[0, 1, 2, 3, 3]], shared[[0, 1, 2, 3, 3]]),
        lambda tables, rows, shared: (tables, rows[[1, 0, 2, 3]], shared),
        lambda tables, rows, shared: (tables, rows, np.minimum(shared, 1)),
        lambda tables, rows, shared: (np.where(tables == 6, 40, tables), rows, shared),
    ],
    ids=["leaves", "joins", "order", "partitions", "block"],
)
def test_rows_are_grouped_anew_when_what_they_share_has_changed(change: Change) -> None:
    sharing = PrefixSharing(share=True)
    before = sharing.groups(TABLES, ROWS, SHARED, P // 2)
    tables, rows, shared = change(TABLES, ROWS, SHARED)
    groups = sharing.groups(tables, rows, shared, P // 2)
    assert groups is not before
    fresh = PrefixSharing(share=True).groups(tables, rows, shared, P // 2)
    assert groups is not None
    assert fresh is not None
    assert coverage(groups) == coverage(fresh)
    assert groups.table_rows.tolist() == fresh.table_rows.tolist()


@given(tables_and_rows(), st.data())
def test_groups_without_rows_read_as_much_as_groups_made_anew(
    case: tuple[Int32s, Int32s, Int32s, int], data: st.DataObject
) -> None:
    tables, _, _, block_size = case
    rows = np.arange(len(tables), dtype=np.int32)
    counts = [data.draw(st.integers(0, 6)) for _ in rows]
    groups = PrefixSharing(share=True).groups(tables, rows, np.array(counts, np.int32), block_size)
    if groups is None:
        return
    left = np.array(sorted(data.draw(st.sets(st.sampled_from(rows.tolist())))), dtype=np.int64)
    fewer = np.array(counts, np.int32)
    fewer[left] = 0
    made = PrefixSharing(share=True).groups(tables, rows, fewer, block_size)
    kept = without_rows(groups, left)
    assert (kept is None) == (made is None)
    if kept is None or made is None:
        return
    assert set(coverage(kept)) == set(coverage(made))
    assert kept.num_tokens_saved == made.num_tokens_saved
    assert kept.num_partitions.tolist() == made.num_partitions.tolist()
    for group, row in enumerate(kept.table_rows.tolist()):
        assert row in kept.rows[kept.row_starts[group] : kept.row_starts[group + 1]]


def test_a_row_reads_nothing_beyond_what_it_reads_with_others() -> None:
    """Block 0 may be the one that another row reads there."""
    tables = np.array([[3, 9], [3, 0]], np.int32)
    groups = PrefixSharing(share=True).groups(
        tables, np.arange(2, dtype=np.int32), np.array([1, 2], np.int32), P
    )
    assert groups is not None
    assert set(coverage(groups)) == {(0, 0), (1, 0), (1, 1)}
