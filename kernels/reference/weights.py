"""Codes and scales of GGUF blocks, as in ggml (ggml-common.h, ggml-quants.c)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pagedrun.kernels.quantized_form import BLOCK_FORMS
from pagedrun.kernels.quantized_weight import CodeRows, GroupScales, PackedWeight


def split_blocks(blocks: Tensor, kind: str) -> PackedWeight:
    """Return the matrix in rows of blocks.

    blocks: [num_rows, num_bytes] uint8. kind: "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K" or
    "Q6_K".
    """
    layout = BLOCK_LAYOUTS[kind]
    single = blocks.reshape(-1, layout.num_bytes)
    return packed_weight(layout.codes(single).reshape(len(blocks), -1), blocks, kind)


def packed_weight(codes: CodeRows, blocks: Tensor, kind: str) -> PackedWeight:
    """Return codes [num_rows, num_columns] int8 with the scales of their blocks."""
    layout, form = BLOCK_LAYOUTS[kind], BLOCK_FORMS[kind]
    scales, minima = layout.scales(blocks.reshape(-1, layout.num_bytes))

    def of_row(each: Tensor) -> Tensor:
        return each.reshape(len(blocks), -1)

    assert form.group_size is not None
    return PackedWeight(
        codes,
        form.num_bits,
        scales.mapped(of_row),
        form.group_size,
        minima=None if minima is None else minima.mapped(of_row),
    )


def _half(block: Tensor, at: int) -> Tensor:
    """Return the float16 at a byte, [num_blocks, 1]."""
    return block[:, at : at + 2].contiguous().view(torch.float16)


def _nibbles(packed: Tensor) -> Tensor:
    """Return the low half of each byte, then the high halves."""
    return torch.cat([packed & 15, packed >> 4], dim=1)


def _q4_0(block: Tensor) -> Tensor:
    return _nibbles(block[:, 2:]).to(torch.int8) - 8


def _q4_1(block: Tensor) -> Tensor:
    return _nibbles(block[:, 4:]).to(torch.int8)


def _q5_0(block: Tensor) -> Tensor:
    places = torch.arange(32, device=block.device)
    fifth = (block[:, 2 + places // 8] >> (places % 8).to(torch.uint8)) & 1
    return (_nibbles(block[:, 6:]) | (fifth << 4)).to(torch.int8) - 16


def _q8_0(block: Tensor) -> Tensor:
    return block[:, 2:].contiguous().view(torch.int8)


def _q4_k(block: Tensor) -> Tensor:
    nibbles = [_nibbles(block[:, at : at + 32]) for at in range(16, 144, 32)]
    return torch.cat(nibbles, dim=1).to(torch.int8)


def _q5_k(block: Tensor) -> Tensor:
    codes = torch.cat([_nibbles(block[:, at : at + 32]) for at in range(48, 176, 32)], dim=1)
    fifth = torch.cat([(block[:, 16:48] >> group) & 1 for group in range(8)], dim=1)
    return (codes | (fifth << 4)).to(torch.int8)


def _q6_k(block: Tensor) -> Tensor:
    halves = []
    for half in range(2):
        low, high = block[:, 64 * half :][:, :64], block[:, 128 + 32 * half :][:, :32]
        upper = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
        halves.append(_nibbles(low) | (upper << 4))
    return torch.cat(halves, dim=1).to(torch.int8) - 32


def _one_half(block: Tensor) -> tuple[GroupScales, None]:
    return GroupScales(_half(block, 0)), None


def _two_halves(block: Tensor) -> tuple[GroupScales, GroupScales]:
    """Return scales and minima; the second half is added."""
    return GroupScales(_half(block, 0)), GroupScales(-_half(block, 2))


def _with_six_bits(block: Tensor) -> tuple[GroupScales, GroupScales]:
    """Return what blocks begin with: two halves, and scales and minima of eight groups.

    Bytes 0 to 3 of these have the scales of the first four groups in their low six bits, bytes 4
    to 7 the minima; bytes 8 to 11 have four bits of those of the other groups, whose upper two
    lie in the bits that the first eight left.
    """
    head = block[:, :16].clone(memory_format=torch.contiguous_format)  # a word begins where it may
    _, first, second, last = head.view(torch.int32).unbind(1)
    six, four, two = 0x3F3F3F3F, 0x0F0F0F0F, 0x03030303  # bits of each byte of a word

    def of_bytes(words: Tensor, lower: Tensor) -> Tensor:
        both = torch.stack([words & six, (lower & four) | ((words >> 6 & two) << 4)], dim=1)
        return both.view(torch.uint8)

    minima = GroupScales(of_bytes(second, last >> 4), _half(head, 2))
    return GroupScales(of_bytes(first, last), _half(head, 0)), minima


def _with_bytes(block: Tensor) -> tuple[GroupScales, None]:
    values = block[:, 192:208].contiguous().view(torch.int8)
    return GroupScales(values, _half(block, 208)), None


class BlockLayout(NamedTuple):
    """Content of a block, read from blocks [num_blocks, num_bytes] uint8."""

    num_bytes: int
    codes: Callable[[Tensor], Tensor]
    scales: Callable[[Tensor], tuple[GroupScales, GroupScales | None]]


BLOCK_LAYOUTS = {
    "Q4_0": BlockLayout(18, _q4_0, _one_half),
    "Q4_1": BlockLayout(20, _q4_1, _two_halves),
    "Q5_0": BlockLayout(22, _q5_0, _one_half),
    "Q8_0": BlockLayout(34, _q8_0, _one_half),
    "Q4_K": BlockLayout(144, _q4_k, _with_six_bits),
    "Q5_K": BlockLayout(176, _q5_k, _with_six_bits),
    "Q6_K": BlockLayout(210, _q6_k, _with_bytes),
}
