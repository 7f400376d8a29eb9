"""Weights out of the blocks of GGUF, as ggml stores them (ggml-common.h, ggml-quants.c)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def unpack_blocks(blocks: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """Return the weights in rows of blocks, computed in float32 and rounded once.

    blocks: [num_rows, num_bytes] uint8. kind: "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K" or
    "Q6_K". Returns [num_rows, num_columns] in `dtype`.
    """
    unpack, num_bytes = _KINDS[kind]
    weights: Tensor = unpack(blocks.reshape(-1, num_bytes))
    return weights.reshape(len(blocks), -1).to(dtype)


def _half(block: Tensor, at: int) -> Tensor:
    """Return the float16 at a byte, [num_blocks, 1] float32."""
    return block[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Return the low half of each byte, then the high halves."""
    return torch.cat([packed & 15, packed >> 4], dim=1)


def _q4_0(block: Tensor) -> Tensor:
    return _half(block, 0) * (_nibbles(block[:, 2:]).float() - 8)


def _q4_1(block: Tensor) -> Tensor:
    return _half(block, 0) * _nibbles(block[:, 4:]).float() + _half(block, 2)


def _q5_0(block: Tensor) -> Tensor:
    places = torch.arange(32, device=block.device)
    fifth = (block[:, 2 + places // 8] >> (places % 8).to(torch.uint8)) & 1
    codes = _nibbles(block[:, 6:]) | (fifth << 4)
    return _half(block, 0) * (codes.float() - 16)


def _q8_0(block: Tensor) -> Tensor:
    return _half(block, 0) * block[:, 2:].contiguous().view(torch.int8).float()


def _q4_k(block: Tensor) -> Tensor:
    codes = torch.cat([_nibbles(block[:, at : at + 32]) for at in range(16, 144, 32)], dim=1)
    return _with_six_bit_scales(block, codes)


def _q5_k(block: Tensor) -> Tensor:
    codes = torch.cat([_nibbles(block[:, at : at + 32]) for at in range(48, 176, 32)], dim=1)
    fifth = torch.cat([(block[:, 16:48] >> group) & 1 for group in range(8)], dim=1)
    return _with_six_bit_scales(block, codes | (fifth << 4))


def _with_six_bit_scales(block: Tensor, codes: Tensor) -> Tensor:
    """Return the weights of blocks that begin with two halves and the scales of eight groups.

    Bytes 0 to 3 of these have the scales of the first four groups in their low six bits, bytes 4
    to 7 the minima; bytes 8 to 11 have four bits of those of the other groups, whose upper two
    lie in the bits that the first eight left.
    """
    first, second, last = block[:, 4:8], block[:, 8:12], block[:, 12:16]
    scales = torch.cat([first & 63, (last & 15) | (first >> 6 << 4)], dim=1).float()
    minima = torch.cat([second & 63, (last >> 4) | (second >> 6 << 4)], dim=1).float()
    scales, minima = _half(block, 0) * scales, _half(block, 2) * minima
    groups = codes.float().reshape(-1, 8, 32)
    return (scales[:, :, None] * groups - minima[:, :, None]).flatten(1)


def _q6_k(block: Tensor) -> Tensor:
    halves = []
    for half in range(2):
        low, high = block[:, 64 * half :][:, :64], block[:, 128 + 32 * half :][:, :32]
        upper = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
        halves.append(_nibbles(low) | (upper << 4))
    groups = (torch.cat(halves, dim=1).float() - 32).reshape(-1, 16, 16)
    scales = _half(block, 208) * block[:, 192:208].contiguous().view(torch.int8).float()
    return (scales[:, :, None] * groups).flatten(1)


class _Kind(NamedTuple):
    unpack: Callable[[Tensor], Tensor]
    num_bytes: int


_KINDS = {
    "Q4_0": _Kind(_q4_0, 18),
    "Q4_1": _Kind(_q4_1, 20),
    "Q5_0": _Kind(_q5_0, 22),
    "Q8_0": _Kind(_q8_0, 34),
    "Q4_K": _Kind(_q4_k, 144),
    "Q5_K": _Kind(_q5_k, 176),
    "Q6_K": _Kind(_q6_k, 210),
}
