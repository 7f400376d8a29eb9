"""Weights out of the blocks of GGUF; see the reference for how these are laid out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32
from pagedrun.kernels.cpu.jit import kernel, part, spread


def unpack_blocks(blocks: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """Return the weights in rows of blocks; see the reference."""
    unpack, num_weights, num_bytes, scale, minimum = _KINDS[kind]
    in_blocks = blocks.contiguous().numpy().reshape(len(blocks), -1, num_bytes)
    weights = torch.empty(len(blocks), in_blocks.shape[1] * num_weights, dtype=dtype)

    def halves(at: int) -> Any:
        # Numba knows no float16; there is one for many weights.
        return in_blocks[:, :, at : at + 2].copy().view(np.float16)[:, :, 0].astype(np.float32)

    spread(weights.numel())
    unpack(in_blocks, halves(scale), halves(minimum), as_array(weights))
    return weights


@kernel
def _q4_0(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            packed, scale = blocks[row, index, 2:], scales[row, index]
            out = weights[row, index * 32 : (index + 1) * 32]
            for i in range(16):
                out[i] = from_float32(scale * np.float32(np.int32(packed[i] & 15) - 8), out)
                out[i + 16] = from_float32(scale * np.float32(np.int32(packed[i] >> 4) - 8), out)


@kernel
def _q4_1(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            packed, scale, low = blocks[row, index, 4:], scales[row, index], minima[row, index]
            out = weights[row, index * 32 : (index + 1) * 32]
            for i in range(16):
                out[i] = from_float32(scale * np.float32(packed[i] & 15) + low, out)
                out[i + 16] = from_float32(scale * np.float32(packed[i] >> 4) + low, out)


@kernel
def _q5_0(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            fifth, packed = blocks[row, index, 2:6], blocks[row, index, 6:]
            scale, out = scales[row, index], weights[row, index * 32 : (index + 1) * 32]
            for i in range(16):
                low = np.int32(fifth[i // 8] >> (i % 8)) & 1
                high = np.int32(fifth[2 + i // 8] >> (i % 8)) & 1
                first = (np.int32(packed[i] & 15) | (low << 4)) - 16
                second = (np.int32(packed[i] >> 4) | (high << 4)) - 16
                out[i] = from_float32(scale * np.float32(first), out)
                out[i + 16] = from_float32(scale * np.float32(second), out)


@kernel
def _q8_0(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            codes, scale = blocks[row, index, 2:], scales[row, index]
            out = weights[row, index * 32 : (index + 1) * 32]
            for i in range(32):
                out[i] = from_float32(scale * np.float32(np.int8(codes[i])), out)


@part()
def _six_bits(packed: Any, group: int, at: int) -> Any:
    """Return the scale (`at` 0) or the minimum (`at` 4) of a group, out of twelve bytes."""
    if group < 4:
        return np.float32(packed[at + group] & 63)
    low = packed[4 + group] >> at & 15
    return np.float32(low | (packed[at + group - 4] >> 6 << 4))


@kernel
def _q4_k(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            block = blocks[row, index]
            for group in range(8):
                scale = scales[row, index] * _six_bits(block[4:16], group, 0)
                low = minima[row, index] * _six_bits(block[4:16], group, 4)
                packed, shift = block[16 + group // 2 * 32 :], group % 2 * 4
                out = weights[row, index * 256 + group * 32 : index * 256 + (group + 1) * 32]
                for i in range(32):
                    code = np.float32(packed[i] >> shift & 15)
                    out[i] = from_float32(scale * code - low, out)


@kernel
def _q5_k(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            block = blocks[row, index]
            fifth = block[16:48]
            for group in range(8):
                scale = scales[row, index] * _six_bits(block[4:16], group, 0)
                low = minima[row, index] * _six_bits(block[4:16], group, 4)
                packed, shift = block[48 + group // 2 * 32 :], group % 2 * 4
                out = weights[row, index * 256 + group * 32 : index * 256 + (group + 1) * 32]
                for i in range(32):
                    code = (packed[i] >> shift & 15) | ((fifth[i] >> group & 1) << 4)
                    out[i] = from_float32(scale * np.float32(code) - low, out)


@kernel
def _q6_k(blocks: Any, scales: Any, minima: Any, weights: Any) -> None:
    for row in numba.prange(blocks.shape[0]):
        for index in range(blocks.shape[1]):
            block = blocks[row, index]
            for group in range(16):
                half, run = group // 8, group % 8 // 2
                first = group % 2 * 16
                scale = scales[row, index] * np.float32(np.int8(block[192 + group]))
                low = block[64 * half + run % 2 * 32 + first :]
                high = block[128 + 32 * half + first :]
                out = weights[row, index * 256 + group * 16 : index * 256 + (group + 1) * 16]
                for i in range(16):
                    code = low[i] >> (run // 2 * 4) & 15 | ((high[i] >> (run * 2) & 3) << 4)
                    out[i] = from_float32(scale * np.float32(np.int32(code) - 32), out)


class _Kind(NamedTuple):
    """How blocks are unpacked, their weights and bytes, and the bytes at which they have halves.

    A kind without minima is given its scales twice.
    """

    unpack: Callable[..., None]
    num_weights: int
    num_bytes: int
    scale: int = 0
    minimum: int = 0


_KINDS = {
    "Q4_0": _Kind(_q4_0, 32, 18),
    "Q4_1": _Kind(_q4_1, 32, 20, minimum=2),
    "Q5_0": _Kind(_q5_0, 32, 22),
    "Q8_0": _Kind(_q8_0, 32, 34),
    "Q4_K": _Kind(_q4_k, 256, 144, minimum=2),
    "Q5_K": _Kind(_q5_k, 256, 176, minimum=2),
    "Q6_K": _Kind(_q6_k, 256, 210, scale=208, minimum=208),
}
