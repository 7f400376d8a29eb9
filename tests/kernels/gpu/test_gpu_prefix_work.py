"""The work items of shared prefixes on a GPU: each unit of each prefix once, whoever shares it."""

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import PrefixGroups
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.prefix_attention import items_at_once, tile_rows
from pagedrun.kernels.gpu.attention.prefix_work import UNIT_TOKENS, PrefixWork
from tests.kernels.conftest import build_context
from tests.kernels.gpu.prefix_rows import P, U, branching, groups_of, nested
from tests.support.attention_cases import as_int32


def test_work_refuses_more_than_it_has_room_for() -> None:
    _, context, _, shared = nested(64, 1, 64, torch.float32)
    room = {"max_items": 40, "max_entries": 60, "max_rows": 16, "max_slots": 32}
    for what, too_few in (("items", 3), ("entries", 5), ("rows", 8), ("slots", 5)):
        work = PrefixWork.allocate(
            **{**room, f"max_{what}": too_few}, tile_rows=4, device=torch.device("cpu")
        )
        with pytest.raises(ValueError, match=what):
            work.write(groups_of(context, shared, 64))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("rows_of_tile", [1, 2, 16])
def test_items_cover_each_token_of_each_prefix_once(share: bool, rows_of_tile: int) -> None:
    _, context, _, shared = nested(64, 1, 64, torch.float32)
    work = PrefixWork.of(groups_of(context, shared, 64, share), rows_of_tile, torch.device("cpu"))
    seen: dict[int, list[tuple[int, int]]] = {}
    states: dict[int, list[int]] = {}
    for table, unit, tokens, first, count, state in work.items.tolist():
        assert 1 <= count <= rows_of_tile
        begin, end = unit * UNIT_TOKENS, unit * UNIT_TOKENS + tokens
        for row in work.rows[first : first + count].tolist():
            seen.setdefault(row, []).append((begin, end))
            states.setdefault(row, []).append(state)
            blocks = slice(begin // 64, end // 64)
            assert context.block_tables[table, blocks].equal(context.block_tables[row, blocks])
    for row, partitions in enumerate(shared.tolist()):
        units = -(-partitions // U)
        borders = [min(unit * UNIT_TOKENS, partitions * P) for unit in range(units + 1)]
        assert sorted(seen.get(row, [])) == list(pairwise(borders))
        assert sorted(states.get(row, [])) == list(range(int(work.num_states[row])))
    assert sorted(seen) == [row for row, partitions in enumerate(shared.tolist()) if partitions]


def test_one_group_is_read_once() -> None:
    context = build_context(
        [2 * UNIT_TOKENS + 5], num_kv_heads=1, head_dim=64, block_size=64, dtype=torch.float32
    )
    rows = np.zeros(12, np.int32)
    groups = groups_of(context, as_int32([2 * U] * 12), 64, rows=rows)
    work = PrefixWork.of(groups, 16, torch.device("cpu"))
    assert [item[1:3] + item[4:] for item in work.items.tolist()] == [
        [0, UNIT_TOKENS, 12, 0],
        [1, UNIT_TOKENS, 12, 1],
    ]


@pytest.mark.parametrize(
    ("at_once", "items"),
    [
        (0, [[0, 1], [1, 1], [2, 1], [2, 1]]),  # unit and units of each item
        (1, [[0, 2], [2, 1], [2, 1]]),
        (8, [[0, 1], [1, 1], [2, 1], [2, 1]]),  # all at the same time
    ],
)
def test_an_item_goes_over_units_where_programs_are_few(
    at_once: int, items: list[list[int]]
) -> None:
    groups = branching(2)[2]
    work = PrefixWork.of(groups, 16, torch.device("cpu"), at_once)
    whole = [[unit, tokens // UNIT_TOKENS] for _, unit, tokens, *_ in work.items.tolist()]
    assert [each for each in whole if each[1]] == items
    ends = sum(not each[1] for each in whole)
    assert ends == 2, "the tails of both branches"
    assert work.num_states.tolist() == [len(items)] * 4
    assert work.first_slots.tolist() == [len(items) * row for row in range(4)]


@pytest.mark.parametrize(
    ("arch", "group", "head_dim", "block_size", "cache_dtype", "expected"),
    [
        (90, 4, 128, 64, torch.bfloat16, 33),
        (90, 7, 128, 64, torch.bfloat16, 0),
        (90, 4, 128, 16, torch.bfloat16, 0),
        (90, 4, 256, 64, torch.bfloat16, 0),
        (90, 4, 128, 64, torch.int8, 0),
        (86, 4, 128, 64, torch.bfloat16, 0),
        (100, 4, 128, 64, torch.bfloat16, 0),
    ],
)
def test_items_go_over_several_units_where_registers_hold_two_states(
    arch: int,
    group: int,
    head_dim: int,
    block_size: int,
    cache_dtype: torch.dtype,
    expected: int,
) -> None:
    """Elsewhere they would spill: see the kernels that are compiled ahead of time."""
    on = chip.Chip("cuda", arch, 132, 227 << 10)
    shape = AttentionShape(8 * group, 8, head_dim, torch.bfloat16, cache_dtype, block_size)
    assert items_at_once(64 // group, shape, on) == expected


def test_work_for_thousands_of_rows_is_made_at_once() -> None:
    """By as many lines of Python as for a few: no loop goes over groups, rows or items."""
    few, many = (write_groups(num_groups, 64) for num_groups in (2, 64))
    assert few == many


def write_groups(num_groups: int, members: int) -> int:
    """Make the work of so many groups again; return how many lines of Python that took."""
    num_rows = num_groups * members
    groups = PrefixGroups(
        rows=as_int32(range(num_rows)),
        row_starts=as_int32(range(0, num_rows + 1, members)),
        table_rows=as_int32(range(0, num_rows, members)),
        first_partitions=as_int32([0] * num_groups),
        last_partitions=as_int32([20] * num_groups),
        num_partitions=as_int32([20] * num_rows),
    )
    work = PrefixWork.of(groups, 16, torch.device("cpu"))
    assert len(work.items) == num_groups * 4 * 3
    num_lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal num_lines
        num_lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work.write(groups)
    finally:
        sys.settrace(before)
    return num_lines


def test_tiles_hold_a_group_or_as_much_as_there_is() -> None:
    on = chip.Chip("cuda", 90, 132, 227 << 10)
    shapes = {
        group: AttentionShape(group, 1, 128, torch.bfloat16, torch.bfloat16) for group in (4, 7)
    }
    assert tile_rows(1, shapes[4], on) == 16
    assert tile_rows(16, shapes[4], on) == 16
    assert tile_rows(17, shapes[4], on) == 32
    assert tile_rows(1000, shapes[7], on) == 18
