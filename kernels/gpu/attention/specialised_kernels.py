"""The kernel of prefix attention whose warps have two trades, in Gluon; see `specialised_prefix`.

It does and leaves what `attend_units` does and leaves.
"""

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pagedrun.kernels.gpu.attention.softmax_state import bend_scores, merge_states, weigh_scores

# The oldest Triton that is supported has another name for it.
copy_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit(do_not_specialize=["table_stride"])  # tables grow as a run goes on
def attend_units_specialised(
    q,
    key_boxes,
    value_boxes,
    block_tables,
    items,
    num_items,
    rows,
    first_slots,
    peaks,
    masses,
    totals,
    scale,
    softcap,
    q_stride,
    table_stride,
    key_block,
    value_block,
    NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    NUM_GROUPS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    TILE: gl.constexpr,
    UNIT: gl.constexpr,
    STAGES: gl.constexpr,
    HAS_SOFTCAP: gl.constexpr,
    MERGES: gl.constexpr,
):
    """One program: each n-th pair of an item and a kv head, n being the size of the grid.

    key_block, value_block: rows of the boxes' matrix from one block to the next. NUM_GROUPS: of
    warps that multiply, 1 or 2. All warps walk the same pairs and tiles in the same order.
    """
    gl.static_assert(STAGES >= 2)  # the values of two tiles are held at a time
    gl.static_assert(BLOCK_SIZE % TILE == 0)
    keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TILE, HEAD_DIM], key_boxes.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TILE, HEAD_DIM], value_boxes.layout)
    query_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, HEAD_DIM], gl.bfloat16)
    queries = gl.allocate_shared_memory(gl.bfloat16, [NUM_GROUPS, 64, HEAD_DIM], query_layout)
    # A stage is ready when its bytes have come, and free when each group is done with it.
    barrier_layout: gl.constexpr = mbarrier.MBarrierLayout()
    keys_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    keys_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    values_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    values_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    for stage in gl.static_range(STAGES):
        mbarrier.init(keys_ready.index(stage), count=1)
        mbarrier.init(keys_free.index(stage), count=NUM_GROUPS)
        mbarrier.init(values_ready.index(stage), count=1)
        mbarrier.init(values_free.index(stage), count=NUM_GROUPS)
    fence_async_shared()
    end = gl.load(num_items) * NUM_KV_HEADS
    # The arguments are written out each time: in a variable, constants would become numbers.
    if NUM_GROUPS == 2:
        gl.warp_specialize(
            [
                (
                    _multiply,
                    (
                        0, q, keys, values, queries,
                        keys_ready, keys_free, values_ready, values_free,
                        items, end, rows, first_slots, peaks, masses, totals,
                        scale, softcap, q_stride,
                        NUM_KV_HEADS, GROUP, HEAD_DIM, TILE, UNIT, STAGES, HAS_SOFTCAP, MERGES,
                    ),
                ),
                (
                    _multiply,
                    (
                        1, q, keys, values, queries,
                        keys_ready, keys_free, values_ready, values_free,
                        items, end, rows, first_slots, peaks, masses, totals,
                        scale, softcap, q_stride,
                        NUM_KV_HEADS, GROUP, HEAD_DIM, TILE, UNIT, STAGES, HAS_SOFTCAP, MERGES,
                    ),
                ),
                (
                    _copy,
                    (
                        key_boxes, value_boxes, keys, values,
                        keys_ready, keys_free, values_ready, values_free,
                        block_tables, items, end, table_stride, key_block, value_block,
                        NUM_KV_HEADS, BLOCK_SIZE, TILE, UNIT, STAGES,
                    ),
                ),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    _multiply,
                    (
                        0, q, keys, values, queries,
                        keys_ready, keys_free, values_ready, values_free,
                        items, end, rows, first_slots, peaks, masses, totals,
                        scale, softcap, q_stride,
                        NUM_KV_HEADS, GROUP, HEAD_DIM, TILE, UNIT, STAGES, HAS_SOFTCAP, MERGES,
                    ),
                ),
                (
                    _copy,
                    (
                        key_boxes, value_boxes, keys, values,
                        keys_ready, keys_free, values_ready, values_free,
                        block_tables, items, end, table_stride, key_block, value_block,
                        NUM_KV_HEADS, BLOCK_SIZE, TILE, UNIT, STAGES,
                    ),
                ),
            ],
            [1],
            [24],
        )  # fmt: skip


@gluon.jit
def _copy(
    key_boxes,
    value_boxes,
    keys,
    values,
    keys_ready,
    keys_free,
    values_ready,
    values_free,
    block_tables,
    items,
    end,
    table_stride,
    key_block,
    value_block,
    NUM_KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    TILE: gl.constexpr,
    UNIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Fill stages with the tiles of all pairs, each as soon as it is free."""
    filled = 0
    for pair in range(gl.program_id(0), end, gl.num_programs(0)):
        item = items + pair // NUM_KV_HEADS * 6
        table = block_tables + gl.load(item).to(gl.int64) * table_stride
        first = gl.load(item + 1) * UNIT
        within_head = pair % NUM_KV_HEADS * BLOCK_SIZE
        for token in range(first, first + gl.load(item + 2), TILE):
            block = gl.load(table + token // BLOCK_SIZE)
            row = within_head + token % BLOCK_SIZE
            stage, turn = filled % STAGES, filled // STAGES
            mbarrier.wait(keys_free.index(stage), (turn & 1) ^ 1)  # at first it is
            mbarrier.expect(keys_ready.index(stage), key_boxes.block_type.nbytes)
            copy_box(
                key_boxes, [block * key_block + row, 0],
                keys_ready.index(stage), keys.index(stage),
            )  # fmt: skip
            mbarrier.wait(values_free.index(stage), (turn & 1) ^ 1)
            mbarrier.expect(values_ready.index(stage), value_boxes.block_type.nbytes)
            copy_box(
                value_boxes, [block * value_block + row, 0],
                values_ready.index(stage), values.index(stage),
            )  # fmt: skip
            filled += 1


@gluon.jit
def _multiply(
    PART: gl.constexpr,
    q,
    keys,
    values,
    queries,
    keys_ready,
    keys_free,
    values_ready,
    values_free,
    items,
    end,
    rows,
    first_slots,
    peaks,
    masses,
    totals,
    scale,
    softcap,
    q_stride,
    NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    TILE: gl.constexpr,
    UNIT: gl.constexpr,
    STAGES: gl.constexpr,
    HAS_SOFTCAP: gl.constexpr,
    MERGES: gl.constexpr,
):
    """Attend from rows 64 * PART .. 64 * PART + 63 of the query matrix of each pair."""
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    along_rows: gl.constexpr = gl.SliceLayout(1, total_layout)
    loaded: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    query = queries.index(PART)
    done = 0
    for pair in range(gl.program_id(0), end, gl.num_programs(0)):
        kv_head, item = pair % NUM_KV_HEADS, items + pair // NUM_KV_HEADS * 6
        num_tokens, begin = gl.load(item + 2), gl.load(item + 3)
        num_rows = gl.load(item + 4) * GROUP

        matrix_rows = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, loaded))
        valid = matrix_rows < num_rows
        row = gl.load(rows + begin + matrix_rows // GROUP, mask=valid, other=0).to(gl.int64)
        elements = row * q_stride + (kv_head * GROUP + matrix_rows % GROUP) * HEAD_DIM
        columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, loaded))
        places = q + elements[:, None] + columns[None, :]
        query.store(gl.load(places, mask=valid[:, None], other=0.0))
        fence_async_shared()

        peak = gl.full([64], float("-inf"), gl.float32, along_rows)
        mass = gl.full([64], 0.0, gl.float32, along_rows)
        total = gl.full([64, HEAD_DIM], 0.0, gl.float32, total_layout)
        if MERGES:
            for first in range(0, num_tokens, UNIT):
                num_tiles = gl.minimum(num_tokens - first, UNIT) // TILE
                part_peak, part_mass, part_total = _attend(
                    query, keys, values, keys_ready, keys_free, values_ready, values_free,
                    done, num_tiles, scale, softcap, HEAD_DIM, TILE, STAGES, HAS_SOFTCAP,
                )  # fmt: skip
                done += num_tiles
                peak, mass, total = merge_states(
                    peak, mass, total, part_peak, part_mass, part_total
                )
        else:
            num_tiles = num_tokens // TILE
            peak, mass, total = _attend(
                query, keys, values, keys_ready, keys_free, values_ready, values_free,
                done, num_tiles, scale, softcap, HEAD_DIM, TILE, STAGES, HAS_SOFTCAP,
            )  # fmt: skip
            done += num_tiles

        matrix_rows = PART * 64 + gl.arange(0, 64, along_rows)
        valid = matrix_rows < num_rows
        row = gl.load(rows + begin + matrix_rows // GROUP, mask=valid, other=0)
        slot = gl.load(first_slots + row, mask=valid, other=0).to(gl.int64) + gl.load(item + 5)
        states = slot * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + matrix_rows % GROUP
        gl.store(peaks + states, peak, mask=valid)
        gl.store(masses + states, mass, mask=valid)
        columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, total_layout))
        places = totals + (states * HEAD_DIM)[:, None] + columns[None, :]
        gl.store(places, total, mask=valid[:, None])


@gluon.jit
def _attend(
    query,
    keys,
    values,
    keys_ready,
    keys_free,
    values_ready,
    values_free,
    done,
    num_tiles,
    scale,
    softcap,
    HEAD_DIM: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    HAS_SOFTCAP: gl.constexpr,
) -> Any:
    """Return the state over the next `num_tiles` tiles, at least one; `done` were before them.

    While the values of a tile are multiplied, the scores of the next one are made and weighed.
    """
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, total_layout, 2)
    along_rows: gl.constexpr = gl.SliceLayout(1, total_layout)
    peak = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, score_layout))
    mass = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, score_layout))
    total = gl.full([64, HEAD_DIM], 0.0, gl.float32, total_layout)
    no_scores = gl.full([64, TILE], 0.0, gl.float32, score_layout)

    stage, phase = done % STAGES, (done // STAGES) & 1
    mbarrier.wait(keys_ready.index(stage), phase)
    scores = warpgroup_mma(
        query, keys.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True
    )
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(keys_free.index(stage), count=1)
    if HAS_SOFTCAP:
        scores = bend_scores(scores, scale, softcap)
    peak, weights, factor = weigh_scores(scores, peak, 1.0 if HAS_SOFTCAP else scale)
    mass = gl.fma(mass, factor, gl.sum(weights, axis=1))
    held = gl.convert_layout(weights.to(gl.bfloat16), weight_layout)
    mbarrier.wait(values_ready.index(stage), phase)
    for tile in range(done + 1, done + num_tiles):
        next_stage, next_phase = tile % STAGES, (tile // STAGES) & 1
        mbarrier.wait(keys_ready.index(next_stage), next_phase)
        scores = warpgroup_mma(
            query, keys.index(next_stage).permute((1, 0)), no_scores, use_acc=False, is_async=True
        )
        summing = warpgroup_mma(held, values.index(stage), total, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        mbarrier.arrive(keys_free.index(next_stage), count=1)
        if HAS_SOFTCAP:
            scores = bend_scores(scores, scale, softcap)
        peak, weights, factor = weigh_scores(scores, peak, 1.0 if HAS_SOFTCAP else scale)
        mass = gl.fma(mass, factor, gl.sum(weights, axis=1))
        # Waiting here keeps the assembler from weighing only when the product is done.
        mbarrier.wait(values_ready.index(next_stage), next_phase)
        total, held = warpgroup_mma_wait(0, deps=(summing, held))  # `held` is read until here
        mbarrier.arrive(values_free.index(stage), count=1)
        total *= gl.convert_layout(factor, along_rows)[:, None]
        held = gl.convert_layout(weights.to(gl.bfloat16), weight_layout)
        stage, phase = next_stage, next_phase
    summing = warpgroup_mma(held, values.index(stage), total, is_async=True)
    total, held = warpgroup_mma_wait(0, deps=(summing, held))
    mbarrier.arrive(values_free.index(stage), count=1)
    return gl.convert_layout(peak, along_rows), gl.convert_layout(mass, along_rows), total
