"""Attention over shared prefixes on sm_90 with specialized warps; see `specialized`.

A program processes and writes what one of `prefix_attention.attend_units` does.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from pagedrun.kernels.attention_inputs import KVLayer, Softmax
from pagedrun.kernels.gpu.attention.attend_tile import LOG2_E, merge_states
from pagedrun.kernels.gpu.attention.prefix_work import UNIT_TOKENS, PrefixPartials, PrefixWork
from pagedrun.kernels.gpu.attention.specialized import (
    GROUP_ROWS,
    WORKER_REGISTERS,
    WORKER_WARPS,
    attend_tiles,
    boxes,
    copy_tile,
    new_ring,
    room_for_rows,
)
from pagedrun.kernels.gpu.chip import Chip

STAGES = 4


def attend_units_specialized(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    work: PrefixWork,
    softmax: Softmax,
    partials: PrefixPartials,
    on: Chip,
) -> None:
    """Attend as `prefix_attention` does, into `partials`; tiles have at most 128 rows."""
    keys, values, _ = layer
    num_heads, head_dim = q.shape[1:]
    num_programs = min(len(work.items) * layer.num_kv_heads, on.num_processors)
    _attend_units[(max(1, num_programs),)](
        q,
        boxes(keys),
        boxes(values),
        block_tables,
        work.items,
        work.num_items,
        work.rows,
        work.first_slots,
        partials.max_scores,
        partials.sum_exps,
        partials.accs,
        softmax.scale * LOG2_E if softmax.softcap is None else softmax.scale,
        softmax.softcap,
        q.stride(0),
        block_tables.stride(0),
        keys.stride(0) // head_dim,
        values.stride(0) // head_dim,
        NUM_KV_HEADS=layer.num_kv_heads,
        GROUP=num_heads // layer.num_kv_heads,
        BLOCK_SIZE=layer.block_size,
        UNIT=UNIT_TOKENS,
        NUM_STAGES=STAGES,
        MERGES=work.at_once > 0,
        num_warps=4,
        enable_fp_fusion=False,
    )


@gluon.jit(do_not_specialize=["table_stride"])  # tables grow as a run goes on
def _attend_units(
    q,
    key_boxes,
    value_boxes,
    block_tables,
    items,
    num_items,
    rows,
    first_slots,
    max_scores,
    sum_exps,
    accs,
    scale,
    softcap,
    q_stride,
    table_stride,
    key_block,
    value_block,
    NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    UNIT: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    MERGES: gl.constexpr,
):
    """Attend over each n-th pair of an item and a kv head; key_block: rows of boxes in a block."""
    ring, queries = new_ring(key_boxes, value_boxes, NUM_STAGES), room_for_rows(key_boxes)
    end = gl.load(num_items) * NUM_KV_HEADS
    # The arguments are written out: in a variable, constants would become numbers.
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    0, ring, queries, q, items, end, rows, first_slots,
                    max_scores, sum_exps, accs, scale, softcap, q_stride,
                    NUM_KV_HEADS, GROUP, UNIT, MERGES,
                ),
            ),
            (
                _multiply,
                (
                    1, ring, queries, q, items, end, rows, first_slots,
                    max_scores, sum_exps, accs, scale, softcap, q_stride,
                    NUM_KV_HEADS, GROUP, UNIT, MERGES,
                ),
            ),
            (
                _copy,
                (
                    ring, key_boxes, value_boxes, block_tables, items, end, table_stride,
                    key_block, value_block, NUM_KV_HEADS, BLOCK_SIZE, UNIT,
                ),
            ),
        ],
        WORKER_WARPS,
        WORKER_REGISTERS,
    )  # fmt: skip


@gluon.jit
def _copy(
    ring,
    key_boxes,
    value_boxes,
    block_tables,
    items,
    end,
    table_stride,
    key_block,
    value_block,
    NUM_KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    UNIT: gl.constexpr,
):
    """Copy the tiles of all pairs."""
    TILE: gl.constexpr = key_boxes.block_type.shape[0]
    count = 0
    for pair in range(gl.program_id(0), end, gl.num_programs(0)):
        item = items + pair // NUM_KV_HEADS * 6
        table = block_tables + gl.load(item).to(gl.int64) * table_stride
        first = gl.load(item + 1) * UNIT
        for token in range(first, first + gl.load(item + 2), TILE):
            block = gl.load(table + token // BLOCK_SIZE)
            row = pair % NUM_KV_HEADS * BLOCK_SIZE + token % BLOCK_SIZE
            copy_tile(
                ring, key_boxes, value_boxes, count,
                block * key_block + row, block * value_block + row,
            )  # fmt: skip
            count += 1


@gluon.jit
def _multiply(
    PART: gl.constexpr,
    ring,
    queries,
    q,
    items,
    end,
    rows,
    first_slots,
    max_scores,
    sum_exps,
    accs,
    scale,
    softcap,
    q_stride,
    NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    UNIT: gl.constexpr,
    MERGES: gl.constexpr,
):
    """Attend from the 64 rows of group number PART, of the query matrix of each pair."""
    TILE: gl.constexpr = ring[0].shape[1]
    HEAD_DIM: gl.constexpr = queries.shape[2]
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    query = queries.index(PART)
    count = 0
    for pair in range(gl.program_id(0), end, gl.num_programs(0)):
        kv_head, item = pair % NUM_KV_HEADS, items + pair // NUM_KV_HEADS * 6
        num_tokens, begin = gl.load(item + 2), gl.load(item + 3)
        num_rows = gl.load(item + 4) * GROUP

        matrix_rows = PART * GROUP_ROWS + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, wide))
        valid = matrix_rows < num_rows
        row = gl.load(rows + begin + matrix_rows // GROUP, mask=valid, other=0).to(gl.int64)
        elements = row * q_stride + (kv_head * GROUP + matrix_rows % GROUP) * HEAD_DIM
        columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, wide))
        places = q + elements[:, None] + columns[None, :]
        query.store(gl.load(places, mask=valid[:, None], other=0.0))
        fence_async_shared()

        max_score = gl.full([GROUP_ROWS], float("-inf"), gl.float32, of_rows)
        sum_exp = gl.full([GROUP_ROWS], 0.0, gl.float32, of_rows)
        acc = gl.full([GROUP_ROWS, HEAD_DIM], 0.0, gl.float32, acc_layout)
        if MERGES:
            for first in range(0, num_tokens, UNIT):
                num_tiles = gl.minimum(num_tokens - first, UNIT) // TILE
                part_max_score = gl.full([GROUP_ROWS], float("-inf"), gl.float32, of_rows)
                part_sum_exp = gl.full([GROUP_ROWS], 0.0, gl.float32, of_rows)
                part_acc = gl.full([GROUP_ROWS, HEAD_DIM], 0.0, gl.float32, acc_layout)
                part_max_score, part_sum_exp, part_acc = attend_tiles(
                    ring, query, count, num_tiles,
                    part_max_score, part_sum_exp, part_acc, scale, softcap, False,
                )  # fmt: skip
                count += num_tiles
                max_score, sum_exp, acc = merge_states(
                    max_score, sum_exp, acc, part_max_score, part_sum_exp, part_acc
                )
        else:
            num_tiles = num_tokens // TILE
            max_score, sum_exp, acc = attend_tiles(
                ring, query, count, num_tiles, max_score, sum_exp, acc, scale, softcap, False
            )
            count += num_tiles

        matrix_rows = PART * GROUP_ROWS + gl.arange(0, GROUP_ROWS, of_rows)
        valid = matrix_rows < num_rows
        row = gl.load(rows + begin + matrix_rows // GROUP, mask=valid, other=0)
        slot = gl.load(first_slots + row, mask=valid, other=0).to(gl.int64) + gl.load(item + 5)
        states = slot * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + matrix_rows % GROUP
        gl.store(max_scores + states, max_score, mask=valid)
        gl.store(sum_exps + states, sum_exp, mask=valid)
        columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, acc_layout))
        places = accs + (states * HEAD_DIM)[:, None] + columns[None, :]
        gl.store(places, acc, mask=valid[:, None])
