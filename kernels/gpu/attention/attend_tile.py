"""Queries against one tile of keys and values: loads from blocks, products, running softmax.

A softmax state is (max_score, sum_exp, acc): the largest score, in base 2; the sum of
`2^(score - max_score)`; and the sum of values with these weights. All float32. Every operation is
explicit (`fma` where two fuse; launches turn other fusion off), so that two
kernels that merge the same states in the same order get the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.gpu.matrix_product import INTERPRETED, multiply


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Launch constants of an attention kernel: rows of queries and keys in one step of a program.

    rows: 16 for decoding, where they are the heads of a group.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


# The versions of Triton that the kernels in Gluon are compiled with: it still renames functions.
OLDEST_GLUON, NEWEST_GLUON = (3, 6), (3, 9)


def can_specialize(
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    on: Chip,
    version: str = triton.__version__,
) -> bool:
    """Return whether the kernels with specialized warps take such a cache on this chip.

    They are for sm_90 alone, whose instructions later chips do not have, and not interpreted.
    """
    release = tuple(int(part) for part in version.split(".")[:2])
    return (
        on.matrix_unit == "wgmma"
        and OLDEST_GLUON <= release <= NEWEST_GLUON
        and not INTERPRETED.value
        and dtype is cache_dtype
        and dtype in (torch.bfloat16, torch.float16)
        and head_dim in (64, 128)
        and block_size > 0
        and block_size % 64 == 0
    )


@triton.jit
def attend_tile(
    query,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    table,
    start,
    low,
    high,
    kv_head,
    scale,
    softcap,
    key_stride,
    value_stride,
    scale_stride,
    max_score,
    sum_exp,
    acc,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    EVICT: tl.constexpr,
) -> Any:
    """Return the state with the keys start .. start + TILE - 1, of which low .. high - 1 count.

    query: [num_rows, WIDTH], the state for as many rows. Without MASKED all the keys count.
    """
    positions = start + tl.arange(0, TILE)
    visible = (positions >= low) & (positions < high)
    offsets = token_offsets(
        table, start, kv_head, visible, key_stride, TILE, BLOCK_SIZE, HEAD_DIM, MASKED
    )
    keys = load_tile(key_cache, offsets, visible, query, HEAD_DIM, WIDTH, MASKED, EVICT)
    scores = tl.zeros((query.shape[0], TILE), tl.float32)
    scores = multiply(query, tl.trans(keys), scores)
    if key_scales is not None:
        offsets = token_offsets(
            table, start, kv_head, visible, scale_stride, TILE, BLOCK_SIZE, 1, MASKED
        )
        scores *= load_scales(key_scales, offsets, visible, MASKED)[None, :]
    if HAS_SOFTCAP:
        scores = softcap_scores(scores, scale, softcap)
    if MASKED:
        scores = tl.where(visible[None, :], scores, float("-inf"))
    max_score, weights, factor = update_softmax(scores, max_score, 1.0 if HAS_SOFTCAP else scale)
    sum_exp = tl.fma(sum_exp, factor, tl.sum(weights, axis=1))
    acc *= factor[:, None]
    offsets = token_offsets(
        table, start, kv_head, visible, value_stride, TILE, BLOCK_SIZE, HEAD_DIM, MASKED
    )
    values = load_tile(value_cache, offsets, visible, query, HEAD_DIM, WIDTH, MASKED, EVICT)
    if value_scales is not None:
        offsets = token_offsets(
            table, start, kv_head, visible, scale_stride, TILE, BLOCK_SIZE, 1, MASKED
        )
        weights *= load_scales(value_scales, offsets, visible, MASKED)[None, :]
    acc = multiply(weights.to(query.dtype), values, acc)
    return max_score, sum_exp, acc


def readable(cache: Tensor, chip: Chip) -> Tensor:
    """Return a cache as loaded by kernels: the bytes of float8 if the chip has no such type."""
    is_float8 = cache.dtype is torch.float8_e4m3fn
    return cache.view(torch.uint8) if is_float8 and not chip.has_float8 else cache


@triton.jit
def token_offsets(
    block_table,
    first,
    kv_head,
    visible,
    block_stride,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    MASKED: tl.constexpr,
) -> Any:
    """Return the offsets of tokens first .. first + TILE - 1 of a kv head, [TILE] int64 elements.

    `first` is a multiple of TILE. ROW_SIZE: elements of one token, `block_stride`: of one block.
    """
    tokens = tl.arange(0, TILE)
    if BLOCK_SIZE % TILE == 0:  # a tile lies in one block, whose number is one scalar
        block_id = tl.load(block_table + first // BLOCK_SIZE).to(tl.int64)
        start = block_id * block_stride + (kv_head * BLOCK_SIZE + first % BLOCK_SIZE) * ROW_SIZE
        return start + tokens * ROW_SIZE
    positions = first + tokens
    # Entries of the table behind the last token may lie outside the table.
    entries = block_table + positions // BLOCK_SIZE
    block_ids = tl.load(entries, mask=visible, other=0) if MASKED else tl.load(entries)
    within = (kv_head * BLOCK_SIZE + positions % BLOCK_SIZE) * ROW_SIZE
    return block_ids.to(tl.int64) * block_stride + within


@triton.jit
def load_tile(
    cache,
    offsets,
    visible,
    like,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
    EVICT: tl.constexpr,
) -> Any:
    """Return [TILE, WIDTH] elements at `offsets` in the dtype of `like`, zero where not visible.

    WIDTH is HEAD_DIM or the next power of two; columns beyond HEAD_DIM are zero.
    """
    columns = tl.arange(0, WIDTH)
    elements = cache + offsets[:, None] + columns[None, :]
    if MASKED:
        mask = visible[:, None] & (columns < HEAD_DIM)[None, :]
        tile = tl.load(elements, mask=mask, other=0.0, eviction_policy=EVICT)
    elif WIDTH != HEAD_DIM:
        mask = (columns < HEAD_DIM)[None, :]
        tile = tl.load(elements, mask=mask, other=0.0, eviction_policy=EVICT)
    else:
        tile = tl.load(elements, eviction_policy=EVICT)
    if tile.dtype == tl.uint8:
        tile = decode_float8(tile)
    if INTERPRETED:  # which takes a bfloat16 for the integer that has the same bits
        tile = tile.to(tl.float32)
    return tile.to(like.dtype)


@triton.jit
def decode_float8(bits) -> Any:
    """Return the float16 values of float8_e4m3fn given as uint8: exact, NaN included.

    Exponent and fraction are shifted to their positions in float16, whose exponent bias is 15
    instead of 7, hence the factor 2^8. There are no infinities.
    """
    wide = bits.to(tl.uint16)
    shifted = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    values = shifted.to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, tl.full(values.shape, float("nan"), tl.float16), values)


@triton.jit
def load_scales(scales, offsets, visible, MASKED: tl.constexpr) -> Any:
    """Return the scales of a tile's tokens, [TILE] float32, zero where not visible."""
    if MASKED:
        return tl.load(scales + offsets, mask=visible, other=0.0)
    return tl.load(scales + offsets)


LOG2_E = 1.4426950408889634


@triton.jit
def empty_state(NUM_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr) -> Any:
    """Return the state of NUM_ROWS rows without keys."""
    max_score = tl.full((NUM_ROWS,), float("-inf"), tl.float32)
    sum_exp = tl.zeros((NUM_ROWS,), tl.float32)
    return max_score, sum_exp, tl.zeros((NUM_ROWS, HEAD_DIM), tl.float32)


@triton.jit
def merge_states(max_score, sum_exp, acc, next_max_score, next_sum_exp, next_acc) -> Any:
    """Return the state over the keys of both; not both may be empty.

    max_score, sum_exp: [num_rows], acc: [num_rows, head_dim]. Merging the result with an empty
    state gives the same bytes: acc has no negative zero.
    """
    joint = tl.maximum(max_score, next_max_score)
    old, new = tl.exp2(max_score - joint), tl.exp2(next_max_score - joint)
    sum_exp = tl.fma(sum_exp, old, next_sum_exp * new)
    return joint, sum_exp, tl.fma(acc, old[:, None], next_acc * new[:, None]) + 0.0


@triton.jit
def add_sinks(max_score, sum_exp, sinks) -> Any:
    """Return `sum_exp` with one more score for each row, [num_rows], without a value."""
    return sum_exp + tl.exp2(sinks * 1.4426950408889634 - max_score)  # log2(e)


@triton.jit
def softcap_scores(scores, scale, softcap) -> Any:
    """Return `softcap * tanh(scores * scale / softcap) * log2(e)`.

    tanh by a power of two: 1 - 2 / (1 + e^2x), which tends to -1 and 1 and keeps NaN.
    """
    # 1.4427 is log2(e), written twice since a kernel reads no module's variables.
    powers = tl.exp2(scores * (scale / softcap * (2 * 1.4426950408889634)))
    return (1.0 - 2.0 / (1.0 + powers)) * (softcap * 1.4426950408889634)


@triton.jit
def update_softmax(scores, max_score, scale) -> Any:
    """Return (max_score, weights, factor) of scores [num_rows, num_keys] and the largest so far.

    `scale` is positive and includes log2(e). Weights are `2^(score * scale - max_score)` with the
    new maximum, and `factor` rescales the old sum_exp and acc.
    """
    joint = tl.maximum(max_score, tl.max(scores, axis=1) * scale)
    # One fused operation for each score, instead of a product and a difference.
    weights = tl.exp2(tl.fma(scores, scale, -joint[:, None]))
    return joint, weights, tl.exp2(max_score - joint)


@triton.jit
def last_key_of(positions, last_of_chunk, window, IS_CAUSAL: tl.constexpr) -> Any:
    """Return the last position that queries at `positions` see."""
    if IS_CAUSAL:
        return positions
    ahead = last_of_chunk - positions
    if window is not None:
        ahead = tl.minimum(ahead, window - 1)
    return positions + ahead
