"""Weights out of the blocks of GGUF are those that the package gguf makes of them."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.paged.files.gguf import BLOCK_TYPES, PACKED_TYPES, BlockType

BY_NAME = {each.name: each for each in BLOCK_TYPES.values()}


def random_blocks(kind: BlockType, num_rows: int, num_blocks: int) -> np.ndarray:
    """Return rows of bytes in which every half is a small finite number."""
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (num_rows, num_blocks, kind.num_bytes), dtype=np.uint8)
    ends = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}
    for at in ends.get(kind.name, (0, 2)):
        halves = random.normal(0, 0.1, (num_rows, num_blocks, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("name", PACKED_TYPES)
def test_every_kind_to_the_last_bit(name: str) -> None:
    blocks = random_blocks(BY_NAME[name], num_rows=5, num_blocks=3)
    expected = torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType[name]))
    assert expected.abs().max() > 0.1
    for backend in (Backend, CpuBackend):
        weight = backend.split_blocks(torch.from_numpy(blocks), name)
        assert torch.equal(backend.dequantize(weight, torch.float32), expected)
        assert torch.equal(backend.dequantize(weight, torch.bfloat16), expected.bfloat16())


@pytest.mark.parametrize("name", PACKED_TYPES)
def test_codes_and_scales_take_the_bytes_of_the_file_and_a_few_percent(name: str) -> None:
    blocks = random_blocks(BY_NAME[name], num_rows=5, num_blocks=3)
    weight = CpuBackend.split_blocks(torch.from_numpy(blocks), name)
    assert blocks.nbytes <= weight.num_bytes <= 1.03 * blocks.nbytes
