"""Attention of prompt chunks over the KV cache, their own part included: causal or to both sides.

A tile of rows, a row being one (token, query head of the group that reads one kv head), walks the
keys in tiles of a fixed width counted from token 0, in ascending order. A row's bytes depend on its
own context alone: the width is the same for every tile of rows, key tiles invisible to a row leave
its state unchanged, to the bit, and a key tile that all rows of a tile see gives the
same numbers with its masks as without.

A program finds its chunk and its rows in `chunk_starts` on the device, so that nothing waits for
the device. The grid follows from the shapes alone, and surplus programs return.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.attention_inputs import (
    KVLayer,
    PrefillInputs,
    RelativeTerms,
    Softmax,
)
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.attend_tile import (
    LOG2_E,
    AttentionTile,
    add_sinks,
    can_specialize,
    empty_state,
    last_key_of,
    load_scales,
    load_tile,
    readable,
    softcap_scores,
    token_offsets,
)
from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.gpu.kv_cache import magnitude
from pagedrun.kernels.gpu.matrix_product import multiply

MAX_GROUP = 32
# Tokens of a step, and query rows of a chunk, from which specialized warps pay: launching them
# takes the host 0.15 ms instead of 0.04, and their tiles have 128 rows.
MIN_TOKENS, MIN_ROWS = 2048, 65


def prefill_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    chunks: PrefillInputs,
    softmax: Softmax,
    window: int | None,
) -> Tensor:
    """Attend from chunks of queries over the blocks of their tables; see the reference."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, scales = layer.num_kv_heads, layer.scales
    scale, softcap, relative = softmax.scale, softmax.softcap, softmax.relative
    assert relative is None or not chunks.is_causal, "whole texts alone"
    num_chunks, group = len(chunks.table_rows), num_heads // num_kv_heads
    assert group <= MAX_GROUP, "a token's rows must fit in a tile"
    assert q.stride(2) == 1 and block_tables.stride(1) == 1
    for cache in (layer.keys, layer.values):
        assert cache.is_contiguous(), "a copy would cost too much"
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    if not num_tokens:
        return out
    on = chip.chip_of(q.device)
    pays = num_tokens >= MIN_TOKENS and triton.cdiv(num_tokens, num_chunks) * group >= MIN_ROWS
    # Capped scores, and rows of no query, need more registers than there are.
    pays &= softcap is None or group & (group - 1) == 0
    pays &= relative is None
    if pays and can_specialize(head_dim, layer.block_size, q.dtype, layer.keys.dtype, on):
        # Imported where it is used: other versions of Triton may lack what it imports.
        from pagedrun.kernels.gpu.attention.specialized_prefill import attend_chunks_specialized

        attend_chunks_specialized(q, layer, block_tables, chunks, softmax, window, out)
        return out
    tile = prefill_tile(head_dim, group, q.dtype, scales is not None, on, relative is not None)
    tile_tokens = tile.rows // group
    _prefill_attention[(num_tokens // tile_tokens + num_chunks, num_kv_heads)](
        q,
        readable(layer.keys, on),
        readable(layer.values, on),
        None if scales is None else scales.keys,
        None if scales is None else scales.values,
        block_tables,
        chunks.chunk_starts,
        chunks.table_rows,
        chunks.first_positions,
        out,
        softmax.sinks,
        *_relative_arguments(relative),
        num_chunks,
        block_tables.stride(0),
        q.stride(0),
        q.stride(1),
        scale * LOG2_E if softcap is None else scale,
        softcap,
        window,
        GROUP=group,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        WIDTH=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=layer.block_size,
        NUM_ROWS=tile.rows,
        TILE_TOKENS=tile_tokens,
        NUM_KEYS=tile.keys,
        IS_CAUSAL=chunks.is_causal,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
    )
    return out


def _relative_arguments(relative: RelativeTerms | None) -> tuple[Any, ...]:
    """Return tables, columns and their middle, and the strides of tokens and heads."""
    if relative is None:
        return None, None, None, 0, 0, 0, 0, 0
    strides: list[int] = []
    for table in (relative.by_query, relative.by_key):
        assert table is None or table.stride(2) == 1, "columns are neighbors"
        strides += (0, 0) if table is None else table.stride()[:2]
    columns = relative.columns
    return relative.by_query, relative.by_key, columns, len(columns) // 2, *strides


def prefill_tile(
    head_dim: int,
    group: int,
    dtype: torch.dtype,
    is_quantized: bool,
    on: Chip,
    has_terms: bool = False,
) -> AttentionTile:
    """Return the tile of a chip, for `group` heads to a kv head; has_terms: of `RelativeTerms`.

    The sizes are the largest that compile without spilling registers; but on an sm_90 tiles of one
    group of warps, of which two programs fit on a processor, were up to 1.5 times as fast.
    """
    width = triton.next_power_of_2(head_dim)
    is_uneven = group & (group - 1) != 0  # some rows of a tile are of no query
    if dtype == torch.float32:  # no tensor cores: registers hold what is multiplied
        num_warps = 4 if width > 256 and on.backend == "hip" else 8
        return AttentionTile(32, 16 if width > 128 or is_uneven else 32, num_warps, 1)
    if width > 256:
        # With 99 KB there is room for one tile of keys and values.
        num_stages = 1 if on.shared_memory < 128 << 10 else 2
        return (
            AttentionTile(32, 16, 4, 1)
            if on.backend == "hip"
            else AttentionTile(32, 32, 8, num_stages)
        )
    if on.backend == "hip":
        return AttentionTile(64 if width > 128 else 128, 32, 4, 2)
    if width > 128:
        return AttentionTile(64, 32, 8, 2)
    if has_terms and on.matrix_unit == "mma":  # places in the tables take registers
        return AttentionTile(64, 32, 4, 2)
    if on.matrix_unit == "mma" and width == 128:
        # Older ones have no float8 type: its codes are taken apart in registers. Masks of padded
        # heads and of rows without a query take some too, and an sm_120 runs out of them anyway.
        needs_room = is_quantized or head_dim < width or is_uneven or on.arch == 120
        return AttentionTile(64, 32, 4, 2) if needs_room else AttentionTile(128, 32, 8, 3)
    if on.matrix_unit == "wgmma" and not (is_quantized and width == 128):
        return AttentionTile(64, 64, 4, 2 if head_dim < width else 3)
    return AttentionTile(128, 64, 8, 3)


@triton.jit(do_not_specialize=["num_chunks", "table_stride", "middle"])
def _prefill_attention(
    q,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    block_tables,
    chunk_starts,
    table_rows,
    first_positions,
    out,
    sinks,
    by_query,
    by_key,
    columns,
    middle,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    num_chunks,
    table_stride,
    q_token_stride,
    q_head_stride,
    scale,
    softcap,
    window,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    NUM_KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
):
    # The last tiles of a prompt see the most keys, so they start first.
    tile, kv_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    chunk = _chunk_of(tile, chunk_starts, num_chunks, TILE_TOKENS)
    chunk_start, chunk_end = tl.load(chunk_starts + chunk), tl.load(chunk_starts + chunk + 1)
    first = chunk_start + (tile - chunk_start // TILE_TOKENS - chunk) * TILE_TOKENS
    if first < chunk_end:
        num_tokens = tl.minimum(TILE_TOKENS, chunk_end - first)
        first_position = tl.load(first_positions + chunk) + first - chunk_start
        last_position = first_position + num_tokens - 1
        last_of_chunk = first_position + chunk_end - 1 - first

        row, d = tl.arange(0, NUM_ROWS), tl.arange(0, WIDTH)[None, :]
        heads = kv_head * GROUP + row % GROUP
        tokens = (first + row // GROUP).to(tl.int64)
        inside = (row < num_tokens * GROUP)[:, None] & (d < HEAD_DIM)
        places = q + tokens[:, None] * q_token_stride + heads[:, None] * q_head_stride + d
        query = tl.load(places, mask=inside, other=0.0)
        positions = first_position + row // GROUP
        last_keys = last_key_of(positions, last_of_chunk, window, IS_CAUSAL)
        last_key = last_key_of(last_position, last_of_chunk, window, IS_CAUSAL)

        relative = None
        if columns is not None:
            # Rows without a query read what the first row of the tile does.
            row_tokens = tl.where(row < num_tokens * GROUP, tokens, first)
            relative = (
                by_query,
                by_key,
                columns + middle,
                middle,
                row_tokens * query_token_stride + heads * query_head_stride,
                chunk_start.to(tl.int64) * key_token_stride + heads.to(tl.int64) * key_head_stride,
                key_token_stride,
            )

        state = empty_state(NUM_ROWS, WIDTH)
        table = block_tables + tl.load(table_rows + chunk).to(tl.int64) * table_stride
        caches = (key_cache, value_cache, key_scales, value_scales)
        sizes: tl.constexpr = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, NUM_KEYS)
        # Key tiles that all rows see: from full_first up to full_last.
        full_first = 0
        full_last = (last_key_of(first_position, last_of_chunk, window, IS_CAUSAL) + 1) // NUM_KEYS
        if window is not None:
            edge = tl.maximum(first_position - window + 1, 0) // NUM_KEYS
            full_first = tl.cdiv(tl.maximum(last_position - window + 1, 0), NUM_KEYS)
            state = _attend_tiles(
                state,
                query,
                positions,
                last_keys,
                edge,
                tl.minimum(full_first, last_key // NUM_KEYS + 1),
                caches,
                table,
                kv_head,
                last_key + 1,
                scale,
                softcap,
                window,
                relative,
                sizes,
                True,
            )
        state = _attend_tiles(
            state,
            query,
            positions,
            last_keys,
            full_first,
            full_last,
            caches,
            table,
            kv_head,
            last_key + 1,
            scale,
            softcap,
            window,
            relative,
            sizes,
            False,
        )
        state = _attend_tiles(
            state,
            query,
            positions,
            last_keys,
            tl.maximum(full_first, full_last),
            last_key // NUM_KEYS + 1,
            caches,
            table,
            kv_head,
            last_key + 1,
            scale,
            softcap,
            window,
            relative,
            sizes,
            True,
        )
        max_score, sum_exp, acc = state
        if sinks is not None:
            sum_exp = add_sinks(max_score, sum_exp, tl.load(sinks + heads))
        # An infinite value shows in its own elements only; it spoils the row.
        spoilt = tl.max(magnitude(acc), axis=1) == float("inf")
        # Adding 0 turns a negative zero, which tiles behind a row could leave or take, into zero.
        result = tl.where(spoilt[:, None], float("nan"), acc / sum_exp[:, None] + 0.0)
        NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
        places = out + (tokens[:, None] * NUM_HEADS + heads[:, None]) * HEAD_DIM + d
        tl.store(places, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _chunk_of(tile, chunk_starts, num_chunks, TILE_TOKENS: tl.constexpr) -> Any:
    """Return the chunk that a tile belongs to.

    Chunk c owns the tiles from chunk_starts[c] // TILE_TOKENS + c on, which are enough for it.
    """
    NUM_SEARCHED: tl.constexpr = 128  # by one load
    num_begun = 0
    for first in tl.range(0, num_chunks, NUM_SEARCHED):
        chunks = first + tl.arange(0, NUM_SEARCHED)
        exists = chunks < num_chunks
        starts = tl.load(chunk_starts + chunks, mask=exists, other=0)
        begun = exists & (starts // TILE_TOKENS + chunks <= tile)
        num_begun += tl.sum(begun.to(tl.int32), axis=0)
    return num_begun - 1


@triton.jit
def _attend_tiles(
    state,
    query,
    positions,
    last_keys,
    first_tile,
    last_tile,
    caches,
    table,
    kv_head,
    context_end,
    scale,
    softcap,
    window,
    relative,
    sizes: tl.constexpr,
    MASKED: tl.constexpr,
) -> Any:
    """Return the state of the rows after the key tiles from `first_tile` up to `last_tile`.

    state: (max_score, sum_exp, acc) of each row. query: [num_rows, WIDTH], zeros from HEAD_DIM on.
    positions: [num_rows]. last_keys: [num_rows], the last position that each row sees. caches:
    keys, values, scales of keys and of values (or None). context_end: the first token that is not
    to be read. relative: see `_add_terms`, or None. sizes: block size, number of kv heads, head
    size, keys in a tile. MASKED: the rows do not all see all keys of these tiles.
    """
    BLOCK_SIZE: tl.constexpr = sizes[0]
    block_vectors: tl.constexpr = BLOCK_SIZE * sizes[1]
    HEAD_DIM: tl.constexpr = sizes[2]
    NUM_KEYS: tl.constexpr = sizes[3]
    NUM_ROWS: tl.constexpr = query.shape[0]
    WIDTH: tl.constexpr = query.shape[1]
    key_cache, value_cache, key_scales, value_scales = caches
    max_score, sum_exp, acc = state
    for tile in tl.range(first_tile, last_tile):
        tokens = tile * NUM_KEYS + tl.arange(0, NUM_KEYS)
        written = tokens < context_end
        # Where the tokens' head vectors lie, counted in such.
        vectors = token_offsets(
            table, tile * NUM_KEYS, kv_head, written, block_vectors, NUM_KEYS, BLOCK_SIZE, 1, MASKED
        )
        offsets = vectors * HEAD_DIM
        keys = load_tile(key_cache, offsets, written, query, HEAD_DIM, WIDTH, MASKED, "")
        scores = multiply(query, tl.trans(keys), tl.zeros((NUM_ROWS, NUM_KEYS), tl.float32))
        if key_scales is not None:
            scores *= load_scales(key_scales, vectors, written, MASKED)[None, :]
        # An infinite key must show as NaN: minus infinity would be a weight of 0.
        scores = tl.fma(scores, 0.0, scores)
        if relative is not None:
            scores = _add_terms(scores, positions, tokens, context_end, relative)
        if softcap is not None:
            scores = softcap_scores(scores, scale, softcap)
        values = load_tile(value_cache, offsets, written, query, HEAD_DIM, WIDTH, MASKED, "")
        value_scale = tl.full((NUM_KEYS,), 1.0, tl.float32)
        if value_scales is not None:
            value_scale = load_scales(value_scales, vectors, written, MASKED)
        if MASKED:
            # What is not finite in a value moves to the scores, where the mask can stop it: a
            # weight of 0 would not, for 0 times NaN is NaN.
            finite = tl.max(magnitude(values.to(tl.float32)), axis=1) < float("inf")
            finite = finite & (magnitude(value_scale) < float("inf"))
            values = tl.where(finite[:, None], values, tl.zeros_like(values))
            value_scale = tl.where(finite, value_scale, 0.0)
            scores = tl.where(finite[None, :], scores, float("nan"))
            visible = tokens[None, :] <= last_keys[:, None]
            if window is not None:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))

        factor = scale if softcap is None else 1.0
        joint = tl.maximum(max_score, tl.max(scores, axis=1) * factor)
        # A row whose window begins in a later tile has no score yet.
        base = joint if window is None else tl.where(joint == float("-inf"), 0.0, joint)
        weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
        old = tl.exp2(max_score - base)
        sum_exp = tl.fma(sum_exp, old, tl.sum(weights, axis=1))
        if value_scales is not None:
            weights *= value_scale[None, :]
        acc = multiply(weights.to(values.dtype), values, acc * old[:, None])
        max_score = joint
    return max_score, sum_exp, acc


@triton.jit
def _add_terms(scores, positions, tokens, context_end, relative) -> Any:
    """Return scores [num_rows, num_keys] with the terms of `RelativeTerms`.

    positions: [num_rows], tokens: [num_keys]. relative: the tables (one may be None), the middle of
    `columns`, the largest distance there, offsets of the rows in each table, [num_rows] int64, and
    the elements from key to key. What lies outside of the text reads a place inside.
    """
    by_query, by_key, columns, most, query_rows, key_rows, key_stride = relative
    keys = tl.minimum(tokens, context_end - 1)
    distances = positions[:, None] - keys[None, :]
    distances = tl.minimum(tl.maximum(distances, -most), most)
    chosen = tl.load(columns + distances)
    if by_query is not None:
        scores += tl.load(by_query + query_rows[:, None] + chosen).to(tl.float32)
    if by_key is not None:
        places = key_rows[:, None] + keys.to(tl.int64)[None, :] * key_stride
        scores += tl.load(by_key + places + chosen).to(tl.float32)
    return scores
