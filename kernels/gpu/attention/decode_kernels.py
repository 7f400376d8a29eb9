"""The Triton kernels that read keys and values for decode attention.

One pass over all of a row's keys, or partitions on their own, to be merged by
`decode_reduction`. Both treat a partition alike: its tiles are counted from token 0 and enter a
fresh state in ascending order, and the states of partitions merge in ascending order, behind those
of a shared prefix. So both give a row the same bytes.

What follows from the width of the block tables, which grows as a run goes on, is not specialised:
a kernel would be compiled anew for widths that 16 divides.
"""

import triton
import triton.language as tl

from pagedrun.kernels.gpu.attention.attend_tile import attend_tile
from pagedrun.kernels.gpu.attention.softmax_state import add_sinks, empty_state, merge_states


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
    prefix_peaks,
    prefix_masses,
    prefix_totals,
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
    """One program: one row's query heads of one kv head, over all of the row's keys.

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

    peak, mass, total = empty_state(NUM_ROWS, WIDTH)
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
            next_peak = tl.load(prefix_peaks + state_elements, mask=valid, other=0.0)
            next_mass = tl.load(prefix_masses + state_elements, mask=valid, other=1.0)
            total_elements = state_elements[:, None] * HEAD_DIM + columns[None, :]
            next_total = tl.load(prefix_totals + total_elements, mask=inside, other=0.0)
            peak, mass, total = merge_states(peak, mass, total, next_peak, next_mass, next_total)
            state_elements += num_heads

    part_peak, part_mass, part_total = empty_state(NUM_ROWS, WIDTH)
    end_tile = tl.cdiv(length, TILE)
    # The tiles that a window or the end cuts are part of the loop, whose loads run ahead: of rows
    # with few tokens they are most of the work. A tile of which all keys count gives the same
    # bytes with masks as without.
    for tile in tl.range(first // TILE, end_tile):
        part_peak, part_mass, part_total = attend_tile(
            query, key_cache, value_cache, key_scales, value_scales, table,
            tile * TILE, first, length, kv_head, scale, softcap,
            key_stride, value_stride, scale_stride,
            part_peak, part_mass, part_total,
            HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, True, "evict_first",
        )  # fmt: skip
        if (tile + 1) * TILE % PARTITION == 0:
            peak, mass, total = merge_states(peak, mass, total, part_peak, part_mass, part_total)
            part_peak, part_mass, part_total = empty_state(NUM_ROWS, WIDTH)
    if (end_tile * TILE % PARTITION != 0) & (length > first):
        peak, mass, total = merge_states(peak, mass, total, part_peak, part_mass, part_total)
    if sinks is not None:
        own = tl.load(sinks + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
        mass = add_sinks(peak, mass, own)
    tl.store(out_elements, (total / mass[:, None]).to(out.dtype.element_ty), mask=inside)


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
    peaks,
    masses,
    totals,
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
    """One program: one row's query heads of one kv head, over each n-th of the row's partitions.

    Grid: (num_kv_heads, num_rows, n). The state of a row's i-th partition behind `first` goes to
    peaks, masses [num_rows, max_partitions, num_heads], totals [.., head_dim], at [row, i].
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
        peak, mass, total = empty_state(NUM_ROWS, WIDTH)
        next_tile, end_tile = low // TILE, high // TILE
        if HAS_WINDOW:  # noqa: SIM102
            if low % TILE != 0:
                peak, mass, total = attend_tile(
                    query, key_cache, value_cache, key_scales, value_scales, table,
                    next_tile * TILE, low, high, kv_head, scale, softcap,
                    key_stride, value_stride, scale_stride,
                    peak, mass, total,
                    HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, True, "evict_first",
                )  # fmt: skip
                next_tile += 1
        for tile in tl.range(next_tile, end_tile):
            peak, mass, total = attend_tile(
                query, key_cache, value_cache, key_scales, value_scales, table,
                tile * TILE, low, high, kv_head, scale, softcap,
                key_stride, value_stride, scale_stride,
                peak, mass, total,
                HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, False, "evict_first",
            )  # fmt: skip
        if (high % TILE != 0) & (end_tile >= next_tile):
            peak, mass, total = attend_tile(
                query, key_cache, value_cache, key_scales, value_scales, table,
                end_tile * TILE, low, high, kv_head, scale, softcap,
                key_stride, value_stride, scale_stride,
                peak, mass, total,
                HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, True, "evict_first",
            )  # fmt: skip
        states = (row * max_partitions + index) * num_heads + kv_head * GROUP + heads
        tl.store(peaks + states, peak, mask=valid)
        tl.store(masses + states, mass, mask=valid)
        tl.store(totals + states[:, None] * HEAD_DIM + columns[None, :], total, mask=inside)
