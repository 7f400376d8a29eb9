"""Attention of prompt chunks on sm_90 with specialized warps; see `specialized`.

Tiles of rows, masks and the handling of numbers that are not finite are those of
`prefill_attention`.
"""

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pagedrun.kernels.attention_inputs import KVLayer, PrefillInputs, Softmax
from pagedrun.kernels.gpu.attention.attend_tile import (
    LOG2_E,
    add_sinks,
    last_key_of,
    softcap_scores,
)
from pagedrun.kernels.gpu.attention.specialized import (
    GROUP_ROWS,
    TILE_ROWS,
    WORKER_REGISTERS,
    WORKER_WARPS,
    attend_tiles,
    boxes,
    copy_tile,
    new_ring,
    room_for_rows,
    thread_barrier,
)
from pagedrun.kernels.gpu.kv_cache import magnitude

STAGES = 3  # as fast as 4 and 5 on an H200


def attend_chunks_specialized(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    chunks: PrefillInputs,
    softmax: Softmax,
    window: int | None,
    out: Tensor,
) -> None:
    """Attend as `prefill_attention` does, into `out`."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, num_chunks = layer.num_kv_heads, len(chunks.table_rows)
    group = num_heads // num_kv_heads
    tile_tokens = TILE_ROWS // group
    _attend_chunks[((num_tokens // tile_tokens + num_chunks) * num_kv_heads,)](
        q,
        boxes(layer.keys),
        boxes(layer.values),
        block_tables,
        chunks.chunk_starts,
        chunks.table_rows,
        chunks.first_positions,
        out,
        softmax.sinks,
        num_chunks,
        block_tables.stride(0),
        q.stride(0),
        q.stride(1),
        softmax.scale * LOG2_E if softmax.softcap is None else softmax.scale,
        softmax.softcap,
        window,
        layer.keys.stride(0) // head_dim,
        layer.values.stride(0) // head_dim,
        GROUP=group,
        NUM_KV_HEADS=num_kv_heads,
        TILE_TOKENS=tile_tokens,
        BLOCK_SIZE=layer.block_size,
        NUM_STAGES=STAGES,
        IS_CAUSAL=chunks.is_causal,
        num_warps=4,
        enable_fp_fusion=False,
    )


@gluon.jit(do_not_specialize=["num_chunks", "table_stride"])
def _attend_chunks(
    q,
    key_boxes,
    value_boxes,
    block_tables,
    chunk_starts,
    table_rows,
    first_positions,
    out,
    sinks,
    num_chunks,
    table_stride,
    q_token_stride,
    q_head_stride,
    scale,
    softcap,
    window,
    key_block,
    value_block,
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    TILE_TOKENS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
):
    """Attend from a tile of rows for a kv head; key_block: rows of boxes in a block."""
    ring = new_ring(key_boxes, value_boxes, NUM_STAGES)
    queries, finite_values = room_for_rows(key_boxes), room_for_rows(value_boxes)
    # The last tiles of a prompt see the most keys, so they start first; a tile's heads together.
    pair = gl.num_programs(0) - 1 - gl.program_id(0)
    kv_head = pair % NUM_KV_HEADS
    tile = _tile_of(
        pair // NUM_KV_HEADS, chunk_starts, first_positions, num_chunks, window,
        TILE_TOKENS, key_boxes.block_type.shape[0], IS_CAUSAL,
    )  # fmt: skip
    table = block_tables
    if tile[0] > 0:
        table += gl.load(table_rows + tile[1]).to(gl.int64) * table_stride
    # Triton 3.6 stores the arguments where the search for the tile may still be read.
    thread_barrier()
    # The arguments are written out: in a variable, constants would become numbers.
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    0, ring, queries, finite_values, tile, kv_head, q, out, sinks,
                    q_token_stride, q_head_stride, scale, softcap, window,
                    GROUP, NUM_KV_HEADS, IS_CAUSAL,
                ),
            ),
            (
                _multiply,
                (
                    1, ring, queries, finite_values, tile, kv_head, q, out, sinks,
                    q_token_stride, q_head_stride, scale, softcap, window,
                    GROUP, NUM_KV_HEADS, IS_CAUSAL,
                ),
            ),
            (
                _copy,
                (
                    ring, key_boxes, value_boxes, tile, table, kv_head * BLOCK_SIZE,
                    key_block, value_block, BLOCK_SIZE,
                ),
            ),
        ],
        WORKER_WARPS,
        WORKER_REGISTERS,
    )  # fmt: skip


@gluon.jit
def _tile_of(
    tile,
    chunk_starts,
    first_positions,
    num_chunks,
    window,
    TILE_TOKENS: gl.constexpr,
    TILE: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
) -> Any:
    """Return the rows of a tile and the tiles of keys that they see.

    (num_tokens, at most 0 for a surplus tile; chunk; first token; position of the first token; last
    position of its chunk; first tile of keys; first and last of those that all rows see; last).
    """
    # Chunk c owns the tiles from chunk_starts[c] // TILE_TOKENS + c on, which are enough for it.
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    num_begun = 0
    for first in range(0, num_chunks, 128):
        numbers = first + gl.arange(0, 128, layout)
        exists = numbers < num_chunks
        starts = gl.load(chunk_starts + numbers, mask=exists, other=0)
        begun = exists & (starts // TILE_TOKENS + numbers <= tile)
        num_begun += gl.sum(begun.to(gl.int32), axis=0)
    chunk = num_begun - 1
    chunk_start, chunk_end = gl.load(chunk_starts + chunk), gl.load(chunk_starts + chunk + 1)
    first = chunk_start + (tile - chunk_start // TILE_TOKENS - chunk) * TILE_TOKENS
    num_tokens = gl.minimum(TILE_TOKENS, chunk_end - first)
    first_position = gl.load(first_positions + chunk) + first - chunk_start
    last_position = first_position + num_tokens - 1
    last_of_chunk = first_position + chunk_end - 1 - first
    last_key = last_key_of(last_position, last_of_chunk, window, IS_CAUSAL)
    end = gl.where(num_tokens > 0, last_key // TILE + 1, 0)
    whole_end = (last_key_of(first_position, last_of_chunk, window, IS_CAUSAL) + 1) // TILE
    begin = 0
    whole_begin = 0
    if window is not None:
        begin = gl.minimum(gl.maximum(first_position - window + 1, 0) // TILE, end)
        whole_begin = gl.minimum(gl.cdiv(gl.maximum(last_position - window + 1, 0), TILE), end)
    whole_end = gl.minimum(gl.maximum(whole_begin, whole_end), end)
    return (
        num_tokens, chunk, first, first_position, last_of_chunk, last_key,
        begin, whole_begin, whole_end, end,
    )  # fmt: skip


@gluon.jit
def _copy(
    ring,
    key_boxes,
    value_boxes,
    tile,
    table,
    first_row,
    key_block,
    value_block,
    BLOCK_SIZE: gl.constexpr,
):
    """Copy the tiles of keys and values."""
    TILE: gl.constexpr = key_boxes.block_type.shape[0]
    begin, end = tile[6], tile[9]
    for number in range(begin, end):
        block = gl.load(table + number * TILE // BLOCK_SIZE)
        row = first_row + number * TILE % BLOCK_SIZE
        copy_tile(
            ring, key_boxes, value_boxes, number - begin,
            block * key_block + row, block * value_block + row,
        )  # fmt: skip


@gluon.jit
def _multiply(
    PART: gl.constexpr,
    ring,
    queries,
    finite_values,
    tile,
    kv_head,
    q,
    out,
    sinks,
    q_token_stride,
    q_head_stride,
    scale,
    softcap,
    window,
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
):
    """Attend from the 64 rows of group number PART, of the tile."""
    HEAD_DIM: gl.constexpr = queries.shape[2]
    NUM_HEADS: gl.constexpr = NUM_KV_HEADS * GROUP
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    query, finite_values = queries.index(PART), finite_values.index(PART)
    (
        num_tokens,
        _,
        first,
        first_position,
        last_of_chunk,
        last_key,
        begin,
        whole_begin,
        whole_end,
        end,
    ) = tile

    rows = PART * GROUP_ROWS + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, wide))
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, wide))
    inside = rows < num_tokens * GROUP
    tokens, heads = (first + rows // GROUP).to(gl.int64), kv_head * GROUP + rows % GROUP
    places = q + (tokens * q_token_stride + heads * q_head_stride)[:, None] + columns[None, :]
    query.store(gl.load(places, mask=inside[:, None], other=0.0))
    fence_async_shared()

    positions = first_position + (PART * GROUP_ROWS + gl.arange(0, GROUP_ROWS, of_rows)) // GROUP
    last_keys = last_key_of(positions, last_of_chunk, window, IS_CAUSAL)
    max_score = gl.full([GROUP_ROWS], float("-inf"), gl.float32, of_rows)
    sum_exp = gl.full([GROUP_ROWS], 0.0, gl.float32, of_rows)
    acc = gl.full([GROUP_ROWS, HEAD_DIM], 0.0, gl.float32, acc_layout)
    if window is not None:
        for number in range(begin, whole_begin):
            max_score, sum_exp, acc = _attend_masked(
                ring, query, finite_values, number - begin, number, positions, last_keys,
                last_key, max_score, sum_exp, acc, scale, softcap, window,
            )  # fmt: skip
    if whole_end > whole_begin:
        max_score, sum_exp, acc = attend_tiles(
            ring, query, whole_begin - begin, whole_end - whole_begin,
            max_score, sum_exp, acc, scale, softcap, True,
        )  # fmt: skip
    for number in range(whole_end, end):
        max_score, sum_exp, acc = _attend_masked(
            ring, query, finite_values, number - begin, number, positions, last_keys,
            last_key, max_score, sum_exp, acc, scale, softcap, window,
        )  # fmt: skip

    if sinks is not None:
        of_row = (PART * GROUP_ROWS + gl.arange(0, GROUP_ROWS, of_rows)) % GROUP
        sum_exp = add_sinks(max_score, sum_exp, gl.load(sinks + kv_head * GROUP + of_row))
    # An infinite value shows in its own elements only; it spoils the row.
    spoilt = gl.max(magnitude(acc), axis=1) == float("inf")
    # Adding 0 turns a negative zero, which tiles behind a row could leave or take, into zero.
    result = gl.where(spoilt[:, None], float("nan"), acc / sum_exp[:, None] + 0.0)
    finite_values.store(result.to(q.dtype.element_ty))
    places = out + ((tokens * NUM_HEADS + heads) * HEAD_DIM)[:, None] + columns[None, :]
    gl.store(places, finite_values.load(wide), mask=inside[:, None])


@gluon.jit
def _attend_masked(
    ring,
    query,
    finite_values,
    count,
    tile,
    positions,
    last_keys,
    last_key,
    max_score,
    sum_exp,
    acc,
    scale,
    softcap,
    window,
) -> Any:
    """Return the state of 64 rows with tile number `tile` of keys, number `count` of the ring.

    positions, last_keys: [64], of each row. last_key: the last that is read. What is not finite in
    a value moves to the scores, where the mask can stop it: a weight of 0 would not, for 0 times
    NaN is NaN. finite_values: shared memory [64, head_dim] for the rest of the values.
    """
    keys, values, keys_ready, keys_free, values_ready, values_free = ring
    STAGES: gl.constexpr = keys.shape[0]
    TILE: gl.constexpr = keys.shape[1]
    HEAD_DIM: gl.constexpr = keys.shape[2]
    acc_layout: gl.constexpr = acc.type.layout
    of_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    of_scores: gl.constexpr = gl.SliceLayout(1, score_layout)
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    max_score = gl.convert_layout(max_score, of_scores)
    sum_exp = gl.convert_layout(sum_exp, of_scores)

    stage, phase = count % STAGES, (count // STAGES) & 1
    mbarrier.wait(keys_ready.index(stage), phase)
    zeros = gl.full([GROUP_ROWS, TILE], 0.0, gl.float32, score_layout)
    scores = warpgroup_mma(
        query, keys.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(keys_free.index(stage), count=1)
    mbarrier.wait(values_ready.index(stage), phase)
    loaded = values.index(stage).load(wide)
    # Loads by threads and tensor copies are ordered by no barrier alone.
    fence_async_shared()
    mbarrier.arrive(values_free.index(stage), count=1)
    tokens = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(1, wide))
    finite = gl.max(magnitude(loaded.to(gl.float32)), axis=1) < float("inf")
    is_kept = (finite & (tokens <= last_key))[:, None]
    finite_values.store(gl.where(is_kept, loaded, 0.0).to(loaded.dtype))
    fence_async_shared()

    scores = gl.fma(scores, 0.0, scores)
    if softcap is not None:
        scores = softcap_scores(scores, scale, softcap)
    # Behind the last token there may be anything; it is masked.
    is_finite = gl.convert_layout(finite.to(gl.int32), gl.SliceLayout(0, score_layout)) > 0
    scores = gl.where(is_finite[None, :], scores, float("nan"))
    tokens = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, score_layout))
    visible = tokens[None, :] <= gl.convert_layout(last_keys, of_scores)[:, None]
    if window is not None:
        first_keys = gl.convert_layout(positions - window, of_scores)
        visible = visible & (tokens[None, :] > first_keys[:, None])
    scores = gl.where(visible, scores, float("-inf"))

    factor = scale if softcap is None else 1.0
    joint = gl.maximum(max_score, gl.max(scores, axis=1) * factor)
    base = joint
    if window is not None:
        # A row whose window begins in a later tile has no score yet.
        base = gl.where(joint == float("-inf"), 0.0, joint)
    weights = gl.exp2(gl.fma(scores, factor, -base[:, None]))
    old = gl.exp2(max_score - base)
    sum_exp = gl.fma(sum_exp, old, gl.sum(weights, axis=1))
    acc *= gl.convert_layout(old, of_rows)[:, None]
    held = gl.convert_layout(weights.to(values.dtype), weight_layout)
    adding = warpgroup_mma(held, finite_values, acc, is_async=True)
    acc, held = warpgroup_mma_wait(0, deps=(adding, held))
    return gl.convert_layout(joint, of_rows), gl.convert_layout(sum_exp, of_rows), acc
