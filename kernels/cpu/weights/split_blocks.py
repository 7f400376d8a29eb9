"""Codes and scales out of the blocks of GGUF; see the reference for how these are laid out."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.packed_weight import PackedWeight
from pagedrun.kernels.reference.weights.split_blocks import BLOCK_LAYOUTS, packed_weight


def split_blocks(blocks: Tensor, kind: str) -> PackedWeight:
    """Return the matrix in rows of blocks; see the reference."""
    num_bytes = BLOCK_LAYOUTS[kind].num_bytes
    num_blocks = blocks.shape[1] // num_bytes
    split, num_weights = _KINDS[kind]
    codes = torch.empty(len(blocks), num_blocks * num_weights, dtype=torch.int8)
    spread(codes.numel())
    split(blocks.contiguous().numpy().reshape(len(blocks), -1, num_bytes), as_array(codes))
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


# What takes codes out of blocks, and how many there are in one.
_KINDS = {
    "Q4_0": (_q4_0, 32),
    "Q4_1": (_q4_1, 32),
    "Q5_0": (_q5_0, 32),
    "Q8_0": (_q8_0, 32),
    "Q4_K": (_q4_k, 256),
    "Q5_K": (_q5_k, 256),
    "Q6_K": (_q6_k, 256),
}
