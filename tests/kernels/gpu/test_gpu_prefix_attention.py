"""Shared prefixes on a GPU, or interpreted: each unit is read once, and no row's bytes change."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, PrefixGroups, Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.decode_attention import decode_single_pass, decode_split
from pagedrun.kernels.gpu.attention.prefix_attention import (
    matrix_heights,
    prefix_attention,
    prefix_tile,
    prefix_work,
)
from pagedrun.kernels.gpu.attention.prefix_work import UNIT_TOKENS, PrefixWork
from pagedrun.kernels.reference import attention as reference
from tests.kernels.conftest import Context, build_context
from tests.kernels.gpu.prefix_rows import P, U, branching, groups_of, nested
from tests.support.attention_cases import as_int32, assert_near
from tests.support.every_pair import long_except


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


# Each with both forms where that is `long`; both give the same bytes, as a test below has it.
SHAPES: list[tuple[Callable[..., Tensor], int, int, int, torch.dtype, float | None]] = [
    (decode_single_pass, 64, 1, 16, torch.float32, None),
    (decode_split, 80, 7, 64, torch.bfloat16, None),
    (decode_split, 128, 4, 32, torch.bfloat16, 3.0),
]
OTHER_SHAPES = [
    (form, *shape, None)
    for form in (decode_single_pass, decode_split)
    for shape in (
        (96, 16, 128, torch.bfloat16),
        (256, 3, 128, torch.float16),
        (512, 8, 16, torch.bfloat16),
    )
]
OTHER_FORM = {decode_single_pass: decode_split, decode_split: decode_single_pass}


@pytest.mark.parametrize(
    ("form", "head_dim", "group", "block_size", "dtype", "softcap"),
    [
        *SHAPES,
        *(
            pytest.param(OTHER_FORM[form], *shape, marks=pytest.mark.long)
            for form, *shape in SHAPES
        ),
        *(pytest.param(*each, marks=pytest.mark.long) for each in OTHER_SHAPES),
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


company = given(present=st.sets(st.integers(0, 8), min_size=1), seed=st.integers(0, 9))


@pytest.mark.invariant("same bytes whoever reads a prefix too")
@settings(max_examples=2, deadline=None)
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


@pytest.mark.heavy("same bytes, on the interpreted kernel")
@pytest.mark.invariant("same bytes whoever reads a prefix too")
@pytest.mark.parametrize("num_rows", long_except([1, 9, 33, 70], [70]))
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
        work = PrefixWork.of(groups, height // 2, gpu_device)
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
    rows = np.array([3, 4, 5, 8], np.int32)
    q, lengths, shared = q[rows], lengths[rows], shared[rows]
    work = PrefixWork.allocate(
        max_items=40, max_entries=60, max_rows=16, max_slots=32, tile_rows=16, device=gpu_device
    )
    address = work.items.data_ptr()
    outs = []
    for share in (False, True):  # the second time less than there was
        work.write(groups_of(context, shared, 64, share=share, rows=rows))
        outs.append(attend(gpu_device, q, context, lengths, work, rows=rows))
    assert work.items.data_ptr() == address
    assert torch.equal(outs[0], outs[1])
    # Nobody shares anything: no items, and rows without a state.
    work.write(empty_groups(len(q)))
    assert int(work.num_items) == 0
    out = attend(gpu_device, q, context, lengths, work, rows=rows)
    wide = KVLayer(context.key_cache.double(), context.value_cache.double())
    expected = reference.decode_attention(
        *(q.double(), wide, context.block_tables, DecodeInputs(as_int32(rows), lengths)),
        *(Softmax(0.125), None),
    )
    assert_near(out, expected)


def empty_groups(num_rows: int) -> PrefixGroups:
    nothing = as_int32([])
    return PrefixGroups(nothing, as_int32([0]), nothing, nothing, nothing, as_int32([0] * num_rows))


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


def test_partials_hold_one_state_for_each_unit(gpu_device: torch.device) -> None:
    q, context, _, shared = nested(64, 2, 64, torch.float32)
    memory: Any = (context.key_cache, context.value_cache, context.block_tables)
    groups = groups_of(context, shared, 64)
    on_gpu, keys, values, tables = (each.to(gpu_device) for each in (q, *memory))
    work = work_of(groups, on_gpu, keys)
    prefix = prefix_attention(on_gpu, KVLayer(keys, values), tables, work, Softmax(0.125))
    units = -(-shared // U)
    assert prefix.first_slots.tolist() == (units.cumsum(0) - units).tolist()
    assert prefix.accs.shape == (int(units.sum()), 4, 64)
    layer = KVLayer(context.key_cache, context.value_cache)
    expected = reference.prefix_attention(q, layer, context.block_tables, groups, Softmax(0.125))
    (only,) = (int(prefix.first_slots[row]) for row in [8])  # one unit: its state is the prefix's
    assert_near(prefix.accs[only].cpu(), expected.accs[8].double())
    assert_near(prefix.max_scores[only].cpu(), expected.max_scores[8].double())
