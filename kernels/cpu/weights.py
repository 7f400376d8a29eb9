"""Unpacking of checkpoint weights: codes with scales, 32-bit words, pairs of codes, GGUF blocks."""

import functools
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import choose_threads, inlined, kernel
from pagedrun.kernels.quantized_weight import DeferredCodes, PackedWeight
from pagedrun.kernels.reference.weights import BLOCK_LAYOUTS, packed_weight

# Shortest run of columns for which a loop over runs is faster than one over columns.
_LONG_RUN = 8
_NO_NUMBERS = np.empty((0, 0), np.float32)


def dequantize(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Return `(code - zero) * scale - minimum`; see the reference."""
    weight = weight.with_numbers()
    codes = weight.codes[:]
    weights = torch.empty(codes.shape, dtype=dtype)
    scales = weight.scales.to_float32()
    zeros = None if weight.zeros is None else weight.zeros.float()
    minima = None if weight.minima is None else weight.minima.to_float32()
    choose_threads(codes.numel())
    arrays = [
        _NO_NUMBERS if each is None else as_array(each.contiguous())
        for each in (codes, scales, zeros, minima)
    ]
    if weight.group_of is None:
        groups = _neighboring_groups(weight.in_features, weight.group_size)
    else:
        groups = weight.group_of.numpy()
    _dequantize(*arrays, groups, _runs(groups), weight.rows_per_scale, as_array(weights))
    return weights


@functools.lru_cache(maxsize=64)
def _neighboring_groups(num_columns: int, group_size: int) -> NDArray[np.int64]:
    """Return the group of each column.

    With NumPy: each step dequantizes a few rows of an embedding, and each operation of torch there
    takes 50 us, since weights have displaced its code from the caches.
    """
    return np.arange(num_columns, dtype=np.int64) // group_size


def _runs(group_of: Any) -> Any:
    """Return the first column of each run of equal groups, and the number of columns."""
    changes = np.flatnonzero(np.diff(group_of)) + 1
    return np.concatenate([[0], changes, [len(group_of)]])


@kernel
def _dequantize(
    codes: Any,
    scales: Any,
    zeros: Any,
    minima: Any,
    group_of: Any,
    runs: Any,
    rows_per_scale: int,
    weights: Any,
) -> None:
    """Dequantize rows. zeros, minima: may have no rows.

    Only codes from 0 on have minima; their products with scales are exact.
    """
    absent = np.zeros(scales.shape[1], np.float32)
    # The scale is constant within a run, so that its loop is vectorized.
    num_runs = runs.shape[0] - 1
    has_long_runs = num_runs * _LONG_RUN <= codes.shape[1]
    for row in numba.prange(codes.shape[0]):
        group_row = row // rows_per_scale
        scale = scales[group_row]
        zero = zeros[group_row] if zeros.shape[0] > 0 else absent
        minimum = minima[group_row] if minima.shape[0] > 0 else absent
        if has_long_runs:
            for run in range(num_runs):
                first, last = runs[run], runs[run + 1]
                group = group_of[first]
                of_run, out = codes[row, first:last], weights[row, first:last]
                _of_one_group(of_run, scale[group], zero[group], minimum[group], out)
        else:
            of_row, out = codes[row], weights[row]
            for column in range(of_row.shape[0]):
                group = group_of[column]
                code = to_float32(of_row[column]) - zero[group]
                value = np.float32(code * scale[group]) - minimum[group]
                out[column] = from_float32(value, out)


@inlined()
def _of_one_group(codes: Any, scale: Any, zero: Any, minimum: Any, weights: Any) -> None:
    for column in range(codes.shape[0]):
        code = to_float32(codes[column]) - zero
        weights[column] = from_float32(np.float32(code * scale) - minimum, weights)


def split_blocks(blocks: Tensor, kind: str) -> PackedWeight:
    """Return the quantized weight of rows of GGUF blocks; see the reference."""
    num_bytes = BLOCK_LAYOUTS[kind].num_bytes
    split, num_weights = _KINDS[kind]
    num_columns = blocks.shape[1] // num_bytes * num_weights
    by_row = blocks.contiguous().numpy().reshape(len(blocks), -1, num_bytes)

    def unpack(start: int, end: int) -> Tensor:
        codes = torch.empty(end - start, num_columns, dtype=torch.int8)
        choose_threads(codes.numel())
        split(by_row[start:end], as_array(codes))
        return codes

    codes = DeferredCodes(torch.Size([len(blocks), num_columns]), torch.int8, unpack)
    return packed_weight(codes, blocks, kind)


@kernel
def _q4_0(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            packed, out = blocks[row, index, 2:], codes[row, index * 32 : (index + 1) * 32]
            for i in range(16):
                out[i] = np.int8(np.int8(packed[i] & 15) - 8)
                out[i + 16] = np.int8(np.int8(packed[i] >> 4) - 8)


@kernel
def _q4_1(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            packed, out = blocks[row, index, 4:], codes[row, index * 32 : (index + 1) * 32]
            for i in range(16):
                out[i] = np.int8(packed[i] & 15)
                out[i + 16] = np.int8(packed[i] >> 4)


@kernel
def _q5_0(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            fifth, packed = blocks[row, index, 2:6], blocks[row, index, 6:]
            out = codes[row, index * 32 : (index + 1) * 32]
            for i in range(16):
                low = np.int32(fifth[i // 8] >> (i % 8)) & 1
                high = np.int32(fifth[2 + i // 8] >> (i % 8)) & 1
                out[i] = np.int8((np.int32(packed[i] & 15) | (low << 4)) - 16)
                out[i + 16] = np.int8((np.int32(packed[i] >> 4) | (high << 4)) - 16)


@kernel
def _q8_0(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            packed, out = blocks[row, index, 2:], codes[row, index * 32 : (index + 1) * 32]
            for i in range(32):
                out[i] = np.int8(packed[i])


@kernel
def _q4_k(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            for group in range(8):
                packed = blocks[row, index, 16 + group // 2 * 32 :]
                shift, start = group % 2 * 4, index * 256 + group * 32
                out = codes[row, start : start + 32]
                for i in range(32):
                    out[i] = np.int8(packed[i] >> shift & 15)


@kernel
def _q5_k(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            fifth = blocks[row, index, 16:48]
            for group in range(8):
                packed = blocks[row, index, 48 + group // 2 * 32 :]
                shift, start = group % 2 * 4, index * 256 + group * 32
                out = codes[row, start : start + 32]
                for i in range(32):
                    upper = (fifth[i] >> group & 1) << 4
                    out[i] = np.int8((packed[i] >> shift & 15) | upper)


@kernel
def _q6_k(blocks: Any, codes: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            block = blocks[row, index]
            for run in range(8):
                half, quarter = run // 4, run % 4
                low, high = block[64 * half + quarter % 2 * 32 :], block[128 + 32 * half :]
                start = index * 256 + run * 32
                out = codes[row, start : start + 32]
                for i in range(32):
                    upper = (high[i] >> (quarter * 2) & 3) << 4
                    code = low[i] >> (quarter // 2 * 4) & 15 | upper
                    out[i] = np.int8(np.int32(code) - 32)


# Unpacking kernel and number of codes of a block.
_KINDS = {
    "Q4_0": (_q4_0, 32),
    "Q4_1": (_q4_1, 32),
    "Q5_0": (_q5_0, 32),
    "Q8_0": (_q8_0, 32),
    "Q4_K": (_q4_k, 256),
    "Q5_K": (_q5_k, 256),
    "Q6_K": (_q6_k, 256),
}

# Orders of eight nibbles in a word: plain, and that of AWQ.
_PLAIN = (0, 1, 2, 3, 4, 5, 6, 7)
_INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_codes(
    words: Tensor, num_bits: int, order: tuple[int, ...], *, transposed: bool = False
) -> Tensor:
    """Return the codes in `words` as signed numbers; see the reference."""
    num_rows, num_words = words.shape
    if transposed and num_bits == 4:
        eights = torch.empty(8 * num_words, -(-num_rows // 8), dtype=torch.int64)
        choose_threads(8 * eights.numel())
        given = as_array(words.contiguous())
        _unpack_columns(given, np.array(order, np.int64), as_array(eights))
        return eights.view(torch.int8)[:, :num_rows].contiguous()
    if transposed:
        return unpack_codes(words, num_bits, order).T.contiguous()
    codes = torch.empty(num_rows, num_words * len(order), dtype=torch.int8)
    choose_threads(codes.numel())
    given = as_array(words.contiguous())
    if num_bits == 4 and order in (_PLAIN, _INTERLEAVED):
        _unpack_nibbles(given, order == _INTERLEAVED, as_array(codes.view(torch.int64)))
    else:
        _unpack_codes(given, num_bits, np.array(order, np.int64), as_array(codes))
    return codes


@kernel
def _unpack_codes(words: Any, num_bits: int, order: Any, codes: Any) -> None:
    mask, half = (1 << num_bits) - 1, 1 << (num_bits - 1)
    num_codes = order.shape[0]
    for row in numba.prange(words.shape[0]):
        for column in range(words.shape[1]):
            word = np.int64(words[row, column])
            of_word = codes[row, column * num_codes : (column + 1) * num_codes]
            for i in range(num_codes):
                of_word[order[i]] = np.int8(((word >> (i * num_bits)) & mask) - half)


# Rows and words whose codes are turned in the first cache: a line of each row of codes.
_EIGHTS_OF_TILE, _WORDS_OF_TILE = 8, 16


@kernel
def _unpack_columns(words: Any, order: Any, codes: Any) -> None:
    """Write the transpose of codes of four bits, those of eight rows of words as one integer.

    codes: [num_words * 8, num_rows / 8, rounded up] int64; zeros follow the last row.
    """
    for tile in numba.prange((codes.shape[1] + _EIGHTS_OF_TILE - 1) // _EIGHTS_OF_TILE):
        begin = tile * _EIGHTS_OF_TILE
        num_eights = min(_EIGHTS_OF_TILE, codes.shape[1] - begin)
        rows = np.zeros((8, _WORDS_OF_TILE), np.uint32)
        turned = np.empty((_EIGHTS_OF_TILE, 8, _WORDS_OF_TILE), np.int64)
        for first in range(0, words.shape[1], _WORDS_OF_TILE):
            num_words = min(_WORDS_OF_TILE, words.shape[1] - first)
            for eight in range(num_eights):
                for i in range(8):
                    row = (begin + eight) * 8 + i
                    for column in range(num_words if row < words.shape[0] else 0):
                        rows[i, column] = words[row, first + column]
                    if row >= words.shape[0]:
                        rows[i] = np.uint32(0)
                _turn_nibbles(rows, turned[eight])
            for column in range(num_words):
                for i in range(8):
                    of_row = codes[(first + column) * 8 + order[i]]
                    for eight in range(num_eights):
                        of_row[begin + eight] = turned[eight, i, column]


@inlined()
def _turn_nibbles(rows: Any, turned: Any) -> None:
    """Write, for each column of words, nibble i of eight rows as the bytes of integer i.

    Squares of 1, 2 and 4 nibbles change sides (Warren, "Hacker's Delight", 7-3). rows: [8,
    `_WORDS_OF_TILE`] uint32.
    """
    for column in range(rows.shape[1]):
        a, b = _exchanged(rows[0, column], rows[1, column], 4, 0x0F0F0F0F)
        c, d = _exchanged(rows[2, column], rows[3, column], 4, 0x0F0F0F0F)
        e, f = _exchanged(rows[4, column], rows[5, column], 4, 0x0F0F0F0F)
        g, h = _exchanged(rows[6, column], rows[7, column], 4, 0x0F0F0F0F)
        a, c = _exchanged(a, c, 8, 0x00FF00FF)
        b, d = _exchanged(b, d, 8, 0x00FF00FF)
        e, g = _exchanged(e, g, 8, 0x00FF00FF)
        f, h = _exchanged(f, h, 8, 0x00FF00FF)
        a, e = _exchanged(a, e, 16, 0x0000FFFF)
        b, f = _exchanged(b, f, 16, 0x0000FFFF)
        c, g = _exchanged(c, g, 16, 0x0000FFFF)
        d, h = _exchanged(d, h, 16, 0x0000FFFF)
        turned[0, column], turned[1, column] = _in_bytes(a), _in_bytes(b)
        turned[2, column], turned[3, column] = _in_bytes(c), _in_bytes(d)
        turned[4, column], turned[5, column] = _in_bytes(e), _in_bytes(f)
        turned[6, column], turned[7, column] = _in_bytes(g), _in_bytes(h)


@inlined()
def _exchanged(one: Any, other: Any, shift: Any, mask: Any) -> Any:
    """Return two words, the upper nibbles of one exchanged with the lower ones of the other."""
    changed = np.uint32((np.uint32(one >> np.uint32(shift)) ^ other) & np.uint32(mask))
    return np.uint32(one ^ np.uint32(changed << np.uint32(shift))), np.uint32(other ^ changed)


@kernel
def _unpack_nibbles(words: Any, is_interleaved: bool, codes: Any) -> None:
    """Write the eight codes of a word as the bytes of one integer, which LLVM vectorizes.

    codes: [num_rows, num_words] int64.
    """
    for row in numba.prange(words.shape[0]):
        of_row, out = words[row], codes[row]
        if is_interleaved:
            for column in range(of_row.shape[0]):
                word = np.uint64(np.uint32(of_row[column]))
                low, high = word & np.uint64(0xFFFF), word >> np.uint64(16)
                out[column] = _signed(_in_words(low) | (_in_words(high) << np.uint64(8)))
        else:
            for column in range(of_row.shape[0]):
                out[column] = _in_bytes(of_row[column])


@inlined()
def _in_words(nibbles: Any) -> Any:
    """Return four nibbles in words of 16 bits each."""
    apart = (nibbles | (nibbles << np.uint64(24))) & np.uint64(0x000000FF000000FF)
    return (apart | (apart << np.uint64(12))) & np.uint64(0x000F000F000F000F)


@inlined()
def _in_bytes(nibbles: Any) -> Any:
    """Return the eight nibbles of a word as signed bytes of an integer."""
    word = np.uint64(np.uint32(nibbles))
    word = (word | (word << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    word = (word | (word << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word | (word << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return _signed(word)


@inlined()
def _signed(nibbles: Any) -> Any:
    """Subtract 8 from each byte; the upper bit prevents borrows between bytes."""
    upper = np.uint64(0x8080808080808080)
    return np.int64(((nibbles | upper) - np.uint64(0x0808080808080808)) ^ upper)


def unpack_pairs(pairs: Tensor, table: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `table[code] * scale`; see the reference."""
    weights = torch.empty(len(pairs), 2 * pairs.shape[1], dtype=dtype)
    choose_threads(weights.numel())
    arrays = [as_array(each.contiguous()) for each in (pairs, table, scales)]
    _unpack_pairs(*arrays, as_array(weights))
    return weights


@kernel
def _unpack_pairs(pairs: Any, table: Any, scales: Any, weights: Any) -> None:
    num_bytes = pairs.shape[1] // scales.shape[1]  # of a group
    for row in numba.prange(pairs.shape[0]):
        for group in range(scales.shape[1]):
            scale, first = scales[row, group], group * num_bytes
            packed = pairs[row, first : first + num_bytes]
            out = weights[row, 2 * first : 2 * (first + num_bytes)]
            for i in range(num_bytes):
                out[2 * i] = from_float32(np.float32(table[packed[i] & 15] * scale), out)
                out[2 * i + 1] = from_float32(np.float32(table[packed[i] >> 4] * scale), out)
