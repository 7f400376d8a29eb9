"""Shared prefixes on a GPU, or interpreted: each unit is read once, and no row's bytes change."""

import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagedrun.kernels import reference
from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import DecodeInputs
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.decode_attention import decode_single_pass, decode_split
from pagedrun.kernels.gpu.attention.prefix_attention import (
    items_at_once,
    matrix_heights,
    prefix_attention,
    prefix_tile,
    prefix_work,
    tile_rows,
)
from pagedrun.kernels.gpu.attention.prefix_partials import UNIT_TOKENS
from pagedrun.kernels.gpu.attention.prefix_work import UNIT_PARTITIONS, PrefixWork
from pagedrun.kernels.kv_layer import KVLayer
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups
from pagedrun.kernels.softmax import Softmax
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from tests.kernels.conftest import Context, build_context

P, U = PARTITION_TOKENS, UNIT_PARTITIONS
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def share_blocks(
    context: Context, block_size: int, paths: list[tuple[int, list[int], int]]
) -> None:
    """Let rows read the first partitions of another: (that row, the rows, partitions)."""
    for source, rows, partitions in paths:
        width = partitions * P // block_size
        context.block_tables[rows, :width] = context.block_tables[source, :width]


def nested(
    head_dim: int, group: int, block_size: int, dtype: torch.dtype
) -> tuple[Tensor, Context, Tensor, Tensor]:
    """Return queries, memory, lengths and shared partitions of nine rows.

    Rows 0-2 share more than a unit, rows 0-4 a part of the first unit, in which rows 3 and 4 go on
    together on a path of their own; row 5 is on the path of all but leaves it early, row 6 shares
    nothing, row 7 is an empty slot, and row 8 has its prefix to itself at the moment.
    """
    shared = [U + 2, U + 2, U + 2, 5, 5, 1, 0, 0, 3]
    lengths = [(U + 2) * P + 9, (U + 3) * P, (U + 2) * P + 1, 6 * P + 5, 5 * P + 77, P + 3, 40]
    lengths += [0, 3 * P + 1]
    context = build_context(
        [max(1, length) for length in lengths],
        num_kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype,
    )  # fmt: skip
    share_blocks(
        context, block_size, [(0, [1, 2], U + 2), (0, [3, 4], 2), (3, [4], 5), (0, [5], 1)]
    )
    q = torch.randn(len(lengths), 2 * group, head_dim, generator=torch.Generator().manual_seed(1))
    return q.to(dtype), context, as_int32(lengths), as_int32(shared)


def as_int32(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


def groups_of(
    context: Context, shared: Tensor, block_size: int, share: bool = True, rows: Any = None
) -> PrefixGroups:
    table_rows = np.arange(len(shared), dtype=np.int32) if rows is None else rows
    groups = PrefixSharing(share=share).groups(
        context.block_tables.numpy(), table_rows, shared.numpy(), block_size
    )
    assert groups is not None
    return groups


def work_of(groups: PrefixGroups, q: Tensor, keys: Tensor) -> PrefixWork:
    _, num_kv_heads, block_size, head_dim = keys.shape
    shape = AttentionShape(q.shape[1], num_kv_heads, head_dim, q.dtype, keys.dtype, block_size)
    return prefix_work(groups, shape, q.device)


def attend(
    device: torch.device,
    q: Tensor,
    context: Context,
    lengths: Tensor,
    groups: PrefixGroups | PrefixWork,
    form: Callable[..., Tensor] = decode_single_pass,
    rows: Any = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    tensors = (q, context.key_cache, context.value_cache, context.block_tables)
    q, keys, values, tables = (each.to(device) for each in tensors)
    work = groups if isinstance(groups, PrefixWork) else work_of(groups, q, keys)
    layer = KVLayer(keys, values, scales)
    softmax = Softmax(0.125, softcap)
    prefix = prefix_attention(q, layer, tables, work, softmax)
    table_rows = as_int32(np.arange(len(q)) if rows is None else rows).to(device)
    inputs = DecodeInputs(table_rows, lengths.to(device))
    return form(q, layer, tables, inputs, softmax, None, prefix).cpu()


@pytest.mark.parametrize("arch", [80, 86, 89, 120])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_one_height_where_heights_would_not_agree(
    arch: int, head_dim: int, cache_dtype: torch.dtype
) -> None:
    """Single warps lie along the keys of a low matrix, and sum in another order."""
    on = chip.Chip("cuda", arch, 84, 99 << 10)
    (height,) = matrix_heights(head_dim, torch.bfloat16, cache_dtype, on)
    tile = prefix_tile(height, head_dim, 64, torch.bfloat16, cache_dtype, on)
    if head_dim <= 128:
        assert tile.num_warps * 16 == height, "each warp has rows of its own"


def assert_near(actual: Tensor, expected: Tensor) -> None:
    error = (actual.double() - expected).abs().max().item()
    assert error <= TOLERANCE[actual.dtype] * max(1.0, expected.abs().max().item())


# Each with both forms where that is `long`; both give the same bytes, as a test below has it.
SHAPES: list[tuple[Callable[..., Tensor], int, int, int, torch.dtype, float | None]] = [
    (decode_single_pass, 64, 1, 16, torch.float32, None),
    (decode_split, 80, 7, 64, torch.bfloat16, None),
    (decode_split, 128, 4, 32, torch.bfloat16, 3.0),
    (decode_single_pass, 256, 3, 128, torch.float16, None),
    (decode_split, 96, 16, 128, torch.bfloat16, None),
    (decode_split, 512, 8, 16, torch.bfloat16, None),
]
OTHER_FORM = {decode_single_pass: decode_split, decode_split: decode_single_pass}


@pytest.mark.parametrize(
    ("form", "head_dim", "group", "block_size", "dtype", "softcap"),
    [
        *SHAPES,
        (decode_single_pass, 128, 4, 32, torch.bfloat16, 3.0),
        *(
            pytest.param(OTHER_FORM[form], *shape, marks=pytest.mark.long)
            for form, *shape in SHAPES
            if shape[0] != 128
        ),
    ],
)
def test_prefix_then_decode_equals_decode_of_everything(
    form: Callable[..., Tensor],
    head_dim: int,
    group: int,
    block_size: int,
    dtype: torch.dtype,
    softcap: float | None,
    gpu_device: torch.device,
) -> None:
    q, context, lengths, shared = nested(head_dim, group, block_size, dtype)
    groups = groups_of(context, shared, block_size)
    out = attend(gpu_device, q, context, lengths, groups, form, softcap=softcap)
    wide = KVLayer(context.key_cache.double(), context.value_cache.double())
    rows = DecodeInputs(as_int32(range(len(q))), lengths)
    assert_near(
        out,
        reference.decode_attention(
            q.double(), wide, context.block_tables, rows, Softmax(0.125, softcap), None
        ),
    )
    assert not out[7].any()


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_caches(cache_dtype: torch.dtype, gpu_device: torch.device) -> None:
    q, context, lengths, shared = nested(64, 2, 64, torch.float32)
    shape = context.key_cache.shape
    codes = tuple(torch.randint(-99, 99, shape).to(cache_dtype) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.rand(codes[0].shape[:3], generator=generator) / 50 for _ in range(2))
    quantised = Context(codes[0], codes[1], context.block_tables)
    groups = groups_of(context, shared, 64)
    on_device = KVScales(keys.to(gpu_device), values.to(gpu_device))
    q = q.bfloat16()
    out = attend(gpu_device, q, quantised, lengths, groups, scales=on_device)
    layer = KVLayer(codes[0], codes[1], KVScales(keys, values))
    rows = DecodeInputs(as_int32(range(len(q))), lengths)
    expected = reference.decode_attention(
        q.double(), layer, context.block_tables, rows, Softmax(0.125), None
    )
    assert_near(out, expected)


def test_both_forms_take_up_a_prefix_with_the_same_bytes(gpu_device: torch.device) -> None:
    q, context, lengths, shared = nested(64, 3, 16, torch.bfloat16)
    groups = groups_of(context, shared, 16)
    once, split = (
        attend(gpu_device, q, context, lengths, groups, form)
        for form in (decode_single_pass, decode_split)
    )
    assert torch.equal(once, split)


company = given(present=st.sets(st.integers(0, 8), min_size=1), seed=st.integers(0, 9))


@settings(max_examples=5, deadline=None)
@company
def test_a_row_gets_the_same_bytes_whoever_runs_beside_it(present: set[int], seed: int) -> None:
    """Who is there decides where groups begin and end, inside of units too."""
    check_company(present, seed)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@company
def test_a_row_gets_the_same_bytes_in_a_hundred_companies(present: set[int], seed: int) -> None:
    check_company(present, seed)


@cache
def each_by_itself(device: torch.device) -> Tensor:
    q, context, lengths, shared = nested(64, 2, 64, torch.bfloat16)
    return attend(device, q, context, lengths, groups_of(context, shared, 64, share=False))


def check_company(present: set[int], seed: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    q, context, lengths, shared = nested(64, 2, 64, torch.bfloat16)
    order = torch.tensor(sorted(present, key=lambda row: hash((row, seed))))
    if not shared[order].any():
        return
    alone = each_by_itself(device)
    rows = order.numpy().astype(np.int32)
    groups = groups_of(context, shared[order], 64, rows=rows)
    together = attend(device, q[order], context, lengths[order], groups, rows=rows)
    assert torch.equal(together, alone[order])


@pytest.mark.parametrize("num_rows", [1, 9, 33, 70])
def test_a_row_gets_the_same_bytes_in_a_crowd(num_rows: int, gpu_device: torch.device) -> None:
    """Whatever the height of the matrix, and whatever a row's place in it."""
    context = build_context(
        [3 * P + 1], num_kv_heads=1, head_dim=64, block_size=64, dtype=torch.bfloat16
    )
    q = torch.randn(70, 2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    on = chip.chip_of(gpu_device)
    outs = []
    for height in matrix_heights(64, torch.bfloat16, torch.bfloat16, on):
        rows = np.zeros(num_rows, np.int32)
        groups = groups_of(context, as_int32([3] * num_rows), 64, rows=rows)
        assert len(groups.table_rows) == 1
        work = PrefixWork.of(groups, tile_rows(height // 2, 2, (height,)), gpu_device)
        mine = q[70 - num_rows :]
        lengths = as_int32([3 * P + 1] * num_rows)
        outs.append(attend(gpu_device, mine, context, lengths, work, rows=rows))
    last = attend(
        gpu_device, q[69:], context, as_int32([3 * P + 1]),
        groups_of(context, as_int32([3]), 64), rows=[0],
    )  # fmt: skip
    for out in outs:
        assert torch.equal(out[-1:], last)
        assert torch.equal(out, outs[0])


def test_a_launch_reads_its_work_from_memory_of_a_fixed_size(gpu_device: torch.device) -> None:
    """As a captured graph does: the same tensors, other groups in them at each step."""
    q, context, lengths, shared = nested(64, 2, 64, torch.float32)
    work = PrefixWork.allocate(
        max_items=40, max_entries=60, max_rows=16, max_slots=32, tile_rows=16, device=gpu_device
    )
    address = work.items.data_ptr()
    outs = []
    for share in (False, True):  # the second time less than there was
        work.write(groups_of(context, shared, 64, share=share))
        outs.append(attend(gpu_device, q, context, lengths, work))
    assert work.items.data_ptr() == address
    assert torch.equal(outs[0], outs[1])
    # Nobody shares anything: no items, and rows without a state.
    work.write(empty_groups(len(q)))
    assert int(work.num_items) == 0
    out = attend(gpu_device, q, context, lengths, work)
    wide = KVLayer(context.key_cache.double(), context.value_cache.double())
    rows = DecodeInputs(as_int32(range(len(q))), lengths)
    expected = reference.decode_attention(
        q.double(), wide, context.block_tables, rows, Softmax(0.125), None
    )
    assert_near(out, expected)


def empty_groups(num_rows: int) -> PrefixGroups:
    nothing = as_int32([])
    return PrefixGroups(nothing, as_int32([0]), nothing, nothing, nothing, as_int32([0] * num_rows))


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
    for table, unit, tokens, first, count, _ in work.items.tolist():
        assert 1 <= count <= rows_of_tile
        begin, end = unit * UNIT_TOKENS, unit * UNIT_TOKENS + tokens
        for row in work.rows[first : first + count].tolist():
            seen.setdefault(row, []).append((begin, end))
            blocks = slice(begin // 64, end // 64)
            assert context.block_tables[table, blocks].equal(context.block_tables[row, blocks])
    for row, partitions in enumerate(shared.tolist()):
        units = -(-partitions // U)
        borders = [min(unit * UNIT_TOKENS, partitions * P) for unit in range(units + 1)]
        assert sorted(seen.get(row, [])) == list(pairwise(borders))
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
    assert items_at_once(shape, on) == expected


def branching(num_kv_heads: int) -> tuple[Context, Tensor, PrefixGroups]:
    """Return memory, shared partitions and groups of four rows that share two units; two of them
    each go on together over one more unit and a partition."""
    context = build_context(
        [3 * UNIT_TOKENS + P + 7] * 4,
        num_kv_heads=num_kv_heads, head_dim=64, block_size=64, dtype=torch.bfloat16,
    )  # fmt: skip
    share_blocks(context, 64, [(0, [1, 2, 3], 2 * U), (0, [1], 3 * U + 1), (2, [3], 3 * U + 1)])
    shared = as_int32([3 * U + 1] * 4)
    return context, shared, groups_of(context, shared, 64)


def test_units_merged_by_a_program_give_the_same_bytes(gpu_device: torch.device) -> None:
    """How many are decides who else is in the step: programs are shared out among all items."""
    context, _, groups = branching(1)
    q = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    lengths = as_int32([3 * UNIT_TOKENS + P + 7] * 4)
    outs = []
    for at_once in (0, 1):
        for form in (decode_single_pass, decode_split):
            work = PrefixWork.of(groups, 32, gpu_device, at_once)
            outs.append(attend(gpu_device, q, context, lengths, work, form))
    assert all(torch.equal(out, outs[0]) for out in outs)
    wide = KVLayer(context.key_cache.double(), context.value_cache.double())
    rows = DecodeInputs(as_int32(range(4)), lengths)
    expected = reference.decode_attention(
        q.double(), wide, context.block_tables, rows, Softmax(0.125), None
    )
    assert_near(outs[0], expected)


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
    assert tile_rows(1, 4, (64, 128)) == 16
    assert tile_rows(16, 4, (64, 128)) == 16
    assert tile_rows(17, 4, (64, 128)) == 32
    assert tile_rows(1000, 7, (64, 128)) == 18


def test_partials_hold_one_state_for_each_unit(gpu_device: torch.device) -> None:
    q, context, _, shared = nested(64, 2, 64, torch.float32)
    memory: Any = (context.key_cache, context.value_cache, context.block_tables)
    groups = groups_of(context, shared, 64)
    on_gpu, keys, values, tables = (each.to(gpu_device) for each in (q, *memory))
    work = work_of(groups, on_gpu, keys)
    prefix = prefix_attention(on_gpu, KVLayer(keys, values), tables, work, Softmax(0.125))
    units = -(-shared // U)
    assert prefix.first_slots.tolist() == (units.cumsum(0) - units).tolist()
    assert prefix.totals.shape == (int(units.sum()), 4, 64)
    layer = KVLayer(context.key_cache, context.value_cache)
    expected = reference.prefix_attention(q, layer, context.block_tables, groups, Softmax(0.125))
    (only,) = (int(prefix.first_slots[row]) for row in [8])  # one unit: its state is the prefix's
    assert_near(prefix.totals[only].cpu(), expected.totals[8].double())
    assert_near(prefix.peaks[only].cpu(), expected.peaks[8].double())
