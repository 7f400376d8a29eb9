"""A tile of consecutive tokens' keys or values, read out of the blocks of a table."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.gpu.matrix_product import INTERPRETED


def readable(cache: Tensor, chip: Chip) -> Tensor:
    """Return a cache as kernels read it: the bytes of float8 where the chip has no such type."""
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
    """Return where tokens first .. first + TILE - 1 of a kv head lie, [TILE] int64 elements.

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

    The bits of exponent and fraction are moved to where float16 has its own; its exponent counts
    from 15 instead of 7, hence the factor 2^8. Of infinities there are none.
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
