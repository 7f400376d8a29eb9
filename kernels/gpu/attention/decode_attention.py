"""Decode attention: single queries over the blocks of their tables.

The query heads that share a kv head are one matrix, padded to the 16 rows of a tensor core: each
key is read once for all of them; memory bandwidth, not arithmetic, is the limit. Head sizes
that are no power of two are padded in registers and shared memory only: masked columns are never
read, so they cost no memory traffic, and two narrower tiles (64 + 16) would read the same bytes.

Two forms: `single_pass` over all of a row's keys, or `partial_states` of partitions on their own,
which `reduce_states` merges. Both treat a partition alike: its tiles are counted from token 0 and
enter a fresh state in ascending order, and the states of partitions merge in ascending order, after
those of a shared prefix. So both give a row the same bytes.

Values derived from the width of the block tables, which grows as a run goes on, are not
specialized: a kernel would be compiled anew for widths that 16 divides.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.attend_tile import (
    LOG2_E,
    AttentionTile,
    add_sinks,
    attend_tile,
    empty_state,
    merge_states,
    readable,
)
from pagedrun.kernels.gpu.attention.prefix_work import PrefixPartials
from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.partition import PARTITION_TOKENS

# Keys of a partition, counted from token 0, whose state is merged. A constant, since a row's bytes
# depend on it.
DECODE_PARTITION = 4 * PARTITION_TOKENS
# A program that goes over all partitions of a row holds two results of 16 heads in registers. Those
# of larger heads do not fit.
MAX_SINGLE_PASS_DIM = 256
# A split aims at this many programs for each processor, so that a long row does not run alone.
PROGRAMS_PER_PROCESSOR = 4
# States of a prefix or of partitions being loaded while one is merged.
STATES_AHEAD = 4


def decode_tile(
    head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, on: Chip
) -> AttentionTile:
    """Return the tile for the dtypes of queries and cache; several tiles are in flight."""
    width = triton.next_power_of_2(head_dim)
    if dtype is torch.float32:  # no tensor cores: registers hold what is multiplied
        return AttentionTile(16, 16, 8, 2)  # spills 0.6 KB at head size 256, rare in float32
    is_quantized = cache_dtype.itemsize == 1
    if on.backend == "hip":
        return AttentionTile(16, 16 if is_quantized and width > MAX_SINGLE_PASS_DIM else 32, 4, 1)
    if width > MAX_SINGLE_PASS_DIM:
        return AttentionTile(16, 16 if is_quantized else 32, 8, 3)
    # Block ids are loaded a stage ahead of keys: 3 stages hold one tile of keys ahead, 5 hold two.
    tile = 32 if width > 128 else 64
    if is_quantized:  # registers hold the tile twice, quantized and converted
        return AttentionTile(16, min(64, 4096 // width), 4, 3)
    return AttentionTile(16, tile, 4, 3 if on.matrix_unit == "mma" else 5)


def decode_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    rows: DecodeInputs,
    softmax: Softmax,
    window: int | None,
    prefix: PrefixPartials | None = None,
) -> Tensor:
    """Attend from single query rows over the blocks of their tables; see the reference.

    float32, float16 and bfloat16 queries; a cache of the same dtype, or one with `scales`. Rows are
    split over partitions where rows and kv heads alone would leave processors idle; a row's bytes
    are the same either way.
    """
    num_programs = q.shape[0] * layer.num_kv_heads
    num_processors = chip.chip_of(q.device).num_processors
    max_partitions = max_row_partitions(block_tables.shape[1] * layer.block_size, window)
    is_filled = num_programs >= 2 * num_processors or max_partitions == 1
    fits = layer.head_dim <= MAX_SINGLE_PASS_DIM
    form = decode_single_pass if is_filled and fits else decode_split
    return form(q, layer, block_tables, rows, softmax, window, prefix)


def max_row_partitions(num_tokens: int, window: int | None) -> int:
    """Return the largest number of partitions of a row of at most `num_tokens` tokens."""
    num_partitions = max(1, -(-num_tokens // DECODE_PARTITION))
    if window is None:
        return num_partitions
    return min(num_partitions, -(-window // DECODE_PARTITION) + 1)


def decode_single_pass(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    rows: DecodeInputs,
    softmax: Softmax,
    window: int | None,
    prefix: PrefixPartials | None = None,
) -> Tensor:
    """Return `decode_attention` by one program for each row and kv head."""
    _check(q, layer, softmax, window, prefix)
    on = chip.chip_of(q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    num_kv_heads = layer.num_kv_heads
    if not q.numel():
        return out
    single_pass[(num_kv_heads, q.shape[0])](
        q, *_memory(layer, on), block_tables, rows.table_rows, rows.context_lens,
        out, softmax.sinks, *_states(prefix), *_numbers(softmax, window),
        q.stride(0), block_tables.stride(0), *_strides(layer),
        **_constants(q, layer.keys, window, prefix, softmax, on),
        STATES_AHEAD=1 if on.backend == "hip" else STATES_AHEAD,
    )  # fmt: skip
    return out


def decode_split(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    rows: DecodeInputs,
    softmax: Softmax,
    window: int | None,
    prefix: PrefixPartials | None = None,
) -> Tensor:
    """Return `decode_attention` by programs for partitions of rows, and one merging launch.

    The number of programs of a row follows from shapes; those past its end exit at once.
    """
    _check(q, layer, softmax, window, prefix)
    on = chip.chip_of(q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = layer.num_kv_heads
    if not q.numel():
        return out
    max_partitions = max_row_partitions(block_tables.shape[1] * layer.block_size, window)
    wanted = -(-PROGRAMS_PER_PROCESSOR * on.num_processors // (num_rows * num_kv_heads))
    states = torch.empty(
        num_rows, max_partitions, num_heads, head_dim + 2, dtype=torch.float32, device=q.device
    )
    max_scores, sum_exps, accs = _fields(states)
    constants = _constants(q, layer.keys, window, prefix, softmax, on)
    partial_states[(num_kv_heads, num_rows, min(wanted, max_partitions))](
        q, *_memory(layer, on), block_tables, rows.table_rows, rows.context_lens,
        max_scores, sum_exps, accs, _states(prefix)[-1], *_numbers(softmax, window),
        max_partitions, q.stride(0), block_tables.stride(0),
        *_strides(layer), **constants,
    )  # fmt: skip
    shared = ("HEAD_DIM", "WIDTH", "PARTITION", "PREFIX_PARTITION", "HAS_PREFIX", "HAS_WINDOW")
    reduce_states[(num_heads, num_rows)](
        max_scores, sum_exps, accs, rows.context_lens, out, softmax.sinks, *_states(prefix), window,
        max_partitions,
        **{name: constants[name] for name in shared},
        STATES_AHEAD=1 if on.backend == "hip" else STATES_AHEAD,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _check(
    q: Tensor, layer: KVLayer, softmax: Softmax, window: int | None, prefix: PrefixPartials | None
) -> None:
    keys, values, scales = layer
    assert q[:1].is_contiguous(), "heads of a row must lie side by side"
    for cache in (keys, values):
        assert cache[:1].is_contiguous(), "a block must lie in one piece"
        assert scales is not None or cache.dtype is q.dtype
    if scales is not None:
        assert scales.keys[:1].is_contiguous() and scales.values.stride() == scales.keys.stride()
    assert softmax.scale > 0, "the largest score must stay the largest"
    assert prefix is None or window is None, "a window may end inside a prefix"


def _fields(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of max_scores, sum_exps [.., num_heads] and accs [.., num_heads, head_dim]."""
    *outer, width = states.shape
    flat = states.view(-1)
    num_states = flat.numel() // width
    accs, max_scores, sum_exps = flat.split([num_states * (width - 2), num_states, num_states])
    return max_scores.view(outer), sum_exps.view(outer), accs.view(*outer, width - 2)


def _memory(layer: KVLayer, on: Chip) -> tuple[Tensor | None, ...]:
    keys, values, scales = layer
    caches = (readable(keys, on), readable(values, on))
    return (*caches, None, None) if scales is None else (*caches, scales.keys, scales.values)


def _strides(layer: KVLayer) -> tuple[int, int, int | None]:
    """Return the elements from one block to the next of keys, values and scales."""
    keys, values, scales = layer
    return keys.stride(0), values.stride(0), None if scales is None else scales.keys.stride(0)


def _states(prefix: PrefixPartials | None) -> tuple[Tensor | None, ...]:
    if prefix is None:
        return (None,) * 6
    states = (prefix.max_scores, prefix.sum_exps, prefix.accs)
    return (*states, prefix.first_slots, prefix.num_states, prefix.num_partitions)


def _numbers(softmax: Softmax, window: int | None) -> tuple[float, float | None, int | None]:
    """Return scale, cap and window for kernels; the scale includes log2(e) without a cap."""
    scale, softcap = softmax.scale, softmax.softcap
    return (scale * LOG2_E if softcap is None else scale), softcap, window


def _constants(
    q: Tensor,
    key_cache: Tensor,
    window: int | None,
    prefix: PrefixPartials | None,
    softmax: Softmax,
    on: Chip,
) -> dict[str, Any]:
    """Return the compile-time arguments that both forms share."""
    head_dim, group = q.shape[2], q.shape[1] // key_cache.shape[1]
    tile = decode_tile(head_dim, q.dtype, key_cache.dtype, on)
    return {
        "GROUP": group,
        "NUM_ROWS": max(16, triton.next_power_of_2(group)),
        "HEAD_DIM": head_dim,
        "WIDTH": triton.next_power_of_2(head_dim),
        "BLOCK_SIZE": key_cache.shape[2],
        "TILE": tile.keys,
        "PARTITION": DECODE_PARTITION,
        "PREFIX_PARTITION": PARTITION_TOKENS,
        "HAS_PREFIX": prefix is not None,
        "HAS_WINDOW": window is not None,
        "HAS_SOFTCAP": softmax.softcap is not None,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": False,
    }


@triton.jit(do_not_specialize=["table_stride"])
def single_pass(
    q,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    block_tables,
    table_rows,
    context_lens,
    out,
    sinks,
    prefix_max_scores,
    prefix_sum_exps,
    prefix_accs,
    first_slots,
    num_prefix_states,
    num_prefix_partitions,
    scale,
    softcap,
    window,
    q_stride,
    table_stride,
    key_stride,
    value_stride,
    scale_stride,
    GROUP: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PARTITION: tl.constexpr,
    PREFIX_PARTITION: tl.constexpr,
    STATES_AHEAD: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Attend from one row's query heads of one kv head over all of the row's keys.

    Grid: (num_kv_heads, num_rows). NUM_ROWS is GROUP padded to a tensor core's 16.
    """
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(0) * GROUP
    heads, columns = tl.arange(0, NUM_ROWS), tl.arange(0, WIDTH)
    inside = (heads < GROUP)[:, None] & (columns < HEAD_DIM)[None, :]
    elements = (kv_head * GROUP + heads)[:, None] * HEAD_DIM + columns[None, :]
    out_elements = out + row * num_heads * HEAD_DIM + elements
    length = tl.load(context_lens + row)
    if length == 0:  # an empty slot
        tl.store(out_elements, tl.zeros((NUM_ROWS, WIDTH), out.dtype.element_ty), mask=inside)
        return
    query = tl.load(q + row * q_stride + elements, mask=inside, other=0.0)
    table = block_tables + tl.load(table_rows + row).to(tl.int64) * table_stride

    max_score, sum_exp, acc = empty_state(NUM_ROWS, WIDTH)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    if HAS_PREFIX:
        first = tl.load(num_prefix_partitions + row) * PREFIX_PARTITION
        slot = tl.load(first_slots + row).to(tl.int64)
        state_elements = slot * num_heads + kv_head * GROUP + heads
        valid = heads < GROUP
        # Loads of several states ahead: one after another they would cost their latency each.
        for _ in tl.range(tl.load(num_prefix_states + row), num_stages=STATES_AHEAD):
            next_max_score = tl.load(prefix_max_scores + state_elements, mask=valid, other=0.0)
            next_sum_exp = tl.load(prefix_sum_exps + state_elements, mask=valid, other=1.0)
            acc_elements = state_elements[:, None] * HEAD_DIM + columns[None, :]
            next_acc = tl.load(prefix_accs + acc_elements, mask=inside, other=0.0)
            max_score, sum_exp, acc = merge_states(
                max_score, sum_exp, acc, next_max_score, next_sum_exp, next_acc
            )
            state_elements += num_heads

    part_max_score, part_sum_exp, part_acc = empty_state(NUM_ROWS, WIDTH)
    end_tile = tl.cdiv(length, TILE)
    # The tiles that a window or the end cuts are part of the loop, whose loads run ahead: of rows
    # with few tokens they are most of the work. A tile of which all keys count gives the same
    # bytes with masks as without.
    for tile in tl.range(first // TILE, end_tile):
        part_max_score, part_sum_exp, part_acc = attend_tile(
            query, key_cache, value_cache, key_scales, value_scales, table,
            tile * TILE, first, length, kv_head, scale, softcap,
            key_stride, value_stride, scale_stride,
            part_max_score, part_sum_exp, part_acc,
            HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, True, "evict_first",
        )  # fmt: skip
        if (tile + 1) * TILE % PARTITION == 0:
            max_score, sum_exp, acc = merge_states(
                max_score, sum_exp, acc, part_max_score, part_sum_exp, part_acc
            )
            part_max_score, part_sum_exp, part_acc = empty_state(NUM_ROWS, WIDTH)
    if (end_tile * TILE % PARTITION != 0) & (length > first):
        max_score, sum_exp, acc = merge_states(
            max_score, sum_exp, acc, part_max_score, part_sum_exp, part_acc
        )
    if sinks is not None:
        own = tl.load(sinks + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
        sum_exp = add_sinks(max_score, sum_exp, own)
    tl.store(out_elements, (acc / sum_exp[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["table_stride", "max_partitions"])
def partial_states(
    q,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    block_tables,
    table_rows,
    context_lens,
    max_scores,
    sum_exps,
    accs,
    num_prefix_partitions,
    scale,
    softcap,
    window,
    max_partitions,
    q_stride,
    table_stride,
    key_stride,
    value_stride,
    scale_stride,
    GROUP: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PARTITION: tl.constexpr,
    PREFIX_PARTITION: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Attend from one row's query heads of one kv head over each n-th of the row's partitions.

    Grid: (num_kv_heads, num_rows, n). The state of a row's i-th partition after `first` is
    written to max_scores, sum_exps [num_rows, max_partitions, num_heads], accs [.., head_dim].
    """
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(0) * GROUP
    length = tl.load(context_lens + row)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    if HAS_PREFIX:
        first = tl.load(num_prefix_partitions + row) * PREFIX_PARTITION
    begin, end = first // PARTITION, tl.cdiv(length, PARTITION)
    if length <= first or begin + tl.program_id(2) >= end:
        return
    heads, columns = tl.arange(0, NUM_ROWS), tl.arange(0, WIDTH)
    valid = heads < GROUP
    inside = valid[:, None] & (columns < HEAD_DIM)[None, :]
    elements = (kv_head * GROUP + heads)[:, None] * HEAD_DIM + columns[None, :]
    query = tl.load(q + row * q_stride + elements, mask=inside, other=0.0)
    table = block_tables + tl.load(table_rows + row).to(tl.int64) * table_stride
    for index in range(tl.program_id(2), end - begin, tl.num_programs(2)):
        low = tl.maximum((begin + index) * PARTITION, first)
        high = tl.minimum((begin + index + 1) * PARTITION, length)
        max_score, sum_exp, acc = empty_state(NUM_ROWS, WIDTH)
        next_tile, end_tile = low // TILE, high // TILE
        if HAS_WINDOW:  # noqa: SIM102
            if low % TILE != 0:
                max_score, sum_exp, acc = attend_tile(
                    query, key_cache, value_cache, key_scales, value_scales, table,
                    next_tile * TILE, low, high, kv_head, scale, softcap,
                    key_stride, value_stride, scale_stride,
                    max_score, sum_exp, acc,
                    HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, True, "evict_first",
                )  # fmt: skip
                next_tile += 1
        for tile in tl.range(next_tile, end_tile):
            max_score, sum_exp, acc = attend_tile(
                query, key_cache, value_cache, key_scales, value_scales, table,
                tile * TILE, low, high, kv_head, scale, softcap,
                key_stride, value_stride, scale_stride,
                max_score, sum_exp, acc,
                HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, False, "evict_first",
            )  # fmt: skip
        if (high % TILE != 0) & (end_tile >= next_tile):
            max_score, sum_exp, acc = attend_tile(
                query, key_cache, value_cache, key_scales, value_scales, table,
                end_tile * TILE, low, high, kv_head, scale, softcap,
                key_stride, value_stride, scale_stride,
                max_score, sum_exp, acc,
                HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, True, "evict_first",
            )  # fmt: skip
        states = (row * max_partitions + index) * num_heads + kv_head * GROUP + heads
        tl.store(max_scores + states, max_score, mask=valid)
        tl.store(sum_exps + states, sum_exp, mask=valid)
        tl.store(accs + states[:, None] * HEAD_DIM + columns[None, :], acc, mask=inside)


@triton.jit(do_not_specialize=["max_partitions"])
def reduce_states(
    max_scores,
    sum_exps,
    accs,
    context_lens,
    out,
    sinks,
    prefix_max_scores,
    prefix_sum_exps,
    prefix_accs,
    first_slots,
    num_prefix_states,
    num_prefix_partitions,
    window,
    max_partitions,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTITION: tl.constexpr,
    PREFIX_PARTITION: tl.constexpr,
    STATES_AHEAD: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Merge the states of one query head of one row: of its prefix and of its partitions.

    Grid: (num_heads, num_rows).
    """
    head, row, num_heads = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns = tl.arange(0, WIDTH)
    inside = (columns < HEAD_DIM)[None, :]
    out_elements = out + (row * num_heads + head) * HEAD_DIM + columns[None, :]
    length = tl.load(context_lens + row)
    if length == 0:
        tl.store(out_elements, tl.zeros((1, WIDTH), out.dtype.element_ty), mask=inside)
        return
    max_score, sum_exp, acc = empty_state(1, WIDTH)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    if HAS_PREFIX:
        first = tl.load(num_prefix_partitions + row) * PREFIX_PARTITION
        slot = tl.load(first_slots + row).to(tl.int64)
        max_score, sum_exp, acc = merge_run(
            max_score, sum_exp, acc, prefix_max_scores, prefix_sum_exps, prefix_accs,
            slot * num_heads + head, tl.load(num_prefix_states + row), num_heads,
            HEAD_DIM, WIDTH, STATES_AHEAD,
        )  # fmt: skip
    if length > first:
        count = tl.cdiv(length, PARTITION) - first // PARTITION
        max_score, sum_exp, acc = merge_run(
            max_score, sum_exp, acc, max_scores, sum_exps, accs,
            row * max_partitions * num_heads + head, count, num_heads,
            HEAD_DIM, WIDTH, STATES_AHEAD,
        )  # fmt: skip
    if sinks is not None:
        sum_exp = add_sinks(max_score, sum_exp, tl.load(sinks + head + tl.arange(0, 1)))
    tl.store(out_elements, (acc / sum_exp[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def merge_run(
    max_score,
    sum_exp,
    acc,
    max_scores,
    sum_exps,
    accs,
    first,
    count,
    stride,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STATES_AHEAD: tl.constexpr,
) -> Any:
    """Merge the states at first, first + stride, .. into that of one query head."""
    columns = tl.arange(0, WIDTH)
    inside = (columns < HEAD_DIM)[None, :]
    state = first + tl.arange(0, 1)
    # Loads of several states ahead: one after another they would cost their latency each.
    for _ in tl.range(count, num_stages=STATES_AHEAD):
        next_acc = tl.load(
            accs + state[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0
        )
        max_score, sum_exp, acc = merge_states(
            max_score,
            sum_exp,
            acc,
            tl.load(max_scores + state),
            tl.load(sum_exps + state),
            next_acc,
        )
        state += stride
    return max_score, sum_exp, acc
