"""Unpacking of weights on every backend: codes and scales, words, pairs, and blocks of GGUF."""

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight
from pagedrun.paged.files.gguf import BLOCK_TYPES, PACKED_TYPES

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def random_codes(dtype: torch.dtype, num_rows: int, num_columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (num_rows, num_columns), generator=generator, dtype=torch.uint8)
    codes.flatten()[:256] = torch.arange(256)  # all there are
    if dtype is torch.float8_e4m3fn:
        codes[(codes & 0x7F) == 0x7F] = 0x7E  # NaN has a test of its own
    return codes.view(dtype)


@BOTH
@pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("group_size", [0, 1, 10, 45], ids="groups of {}".format)
def test_dequantize_gives_the_bits_of_the_reference(
    group_size: int, code: torch.dtype, dtype: torch.dtype
) -> None:
    """Groups of neighbors, the last of them smaller, or scattered (0)."""
    generator = torch.Generator().manual_seed(2)
    codes = random_codes(code, 37, 45)
    scales = torch.rand(8, 5, generator=generator) / 100  # five rows a scale, the last has two
    zeros = torch.randint(-8, 8, (8, 5), generator=generator, dtype=torch.int8)
    group_of = torch.randint(0, 5, (45,), generator=generator)
    if group_size:
        group_of = torch.arange(45) // group_size % 5
    weight = PackedWeight(codes, 8, GroupScales(scales), 9, 5, zeros, group_of=group_of)
    assert_same(CpuBackend.dequantize(weight, dtype), Backend.dequantize(weight, dtype), dtype)


def assert_same(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype
    assert torch.equal(found, expected)


def test_each_weight_has_the_scale_of_its_block_and_group() -> None:
    codes = random_codes(torch.int8, 5, 52)
    scales, zeros = torch.tensor([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]]), torch.zeros(3, 2)
    zeros[1, 1] = 7.0
    group_of = torch.tensor([0, 1] * 26)
    weight = PackedWeight(codes, 8, GroupScales(scales), 26, 2, zeros.char(), group_of=group_of)
    weights = Backend.dequantize(weight, torch.float32)
    for row, column in ((0, 0), (1, 1), (2, 0), (3, 51), (4, 51)):
        scale, zero = scales[row // 2, column % 2], zeros[row // 2, column % 2]
        assert weights[row, column] == (codes[row, column] - zero) * scale


def test_a_code_that_is_no_number_stays_none() -> None:
    codes = torch.tensor([[0x7F, 0xFF, 0x38]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    weight = PackedWeight(codes, 8, GroupScales(torch.ones(1, 1)), 3)
    weights = CpuBackend.dequantize(weight, torch.bfloat16)
    assert weights.isnan().tolist() == [[True, True, False]]
    assert weights[0, 2] == 1


@pytest.mark.parametrize(
    ("num_bits", "order"),
    [(2, tuple(range(16))), (4, tuple(range(8))), (4, AWQ), (8, (3, 1, 0, 2))],
)
def test_codes_of_words_in_any_order(num_bits: int, order: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    half = 2 ** (num_bits - 1)
    codes = torch.randint(-half, half, (9, 5 * len(order)), generator=generator)
    words = torch.zeros(9, 5, dtype=torch.int64)
    for index, element in enumerate(order):
        words += (codes[:, element :: len(order)] + half) << (index * num_bits)
    packed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    for backend in (Backend, CpuBackend):
        assert_same(backend.unpack_codes(packed, num_bits, order), codes.char(), torch.int8)
        columns = backend.unpack_codes(packed, num_bits, order, transposed=True)
        assert columns.is_contiguous()
        assert_same(columns, codes.char().T, torch.int8)


@BOTH
@pytest.mark.parametrize(("num_bytes", "num_groups"), [(24, 3), (8, 1), (6, 6)])
def test_unpack_pairs_gives_the_bits_of_the_reference(
    num_bytes: int, num_groups: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(4)
    pairs = torch.randint(0, 256, (37, num_bytes), generator=generator, dtype=torch.uint8)
    table = torch.randn(16, generator=generator)
    scales = torch.rand(37, num_groups, generator=generator)
    given = (pairs, table, scales, dtype)
    assert_same(CpuBackend.unpack_pairs(*given), Backend.unpack_pairs(*given), dtype)


def test_the_low_half_comes_first_and_each_group_has_its_scale() -> None:
    pairs = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8)
    table, scales = torch.arange(16.0), torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    for backend in (Backend, CpuBackend):
        weights = backend.unpack_pairs(pairs, table, scales, torch.float32)
        assert weights.tolist() == [[1, 2, 30, 40], [500, 600, 7000, 8000]]


def test_a_scale_that_is_no_number_stays_none() -> None:
    pairs, scales = torch.zeros(1, 1, dtype=torch.uint8), torch.full((1, 1), torch.nan)
    assert CpuBackend.unpack_pairs(pairs, torch.ones(16), scales, torch.bfloat16).isnan().all()


@pytest.mark.parametrize("name", PACKED_TYPES)
def test_blocks_of_gguf_to_the_last_bit(name: str) -> None:
    """Against the package gguf, with every half a small finite number."""
    [kind] = [each for each in BLOCK_TYPES.values() if each.name == name]
    random = np.random.default_rng(3)
    cells: Any = random.integers(0, 256, (5, 3, kind.num_bytes), dtype=np.uint8)
    ends = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}
    for at in ends.get(name, (0, 2)):
        halves = random.normal(0, 0.1, (5, 3, 1)).astype(np.float16)
        cells[:, :, at : at + 2] = halves.view(np.uint8)
    blocks = cells.reshape(5, -1)
    expected = torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType[name]))
    assert expected.abs().max() > 0.1
    for backend in (Backend, CpuBackend):
        weight = backend.split_blocks(torch.from_numpy(blocks), name)
        assert torch.equal(backend.dequantize(weight, torch.float32), expected)
        assert torch.equal(backend.dequantize(weight, torch.bfloat16), expected.bfloat16())
        assert blocks.nbytes <= weight.num_bytes <= 1.03 * blocks.nbytes
