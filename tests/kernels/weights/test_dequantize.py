"""Weights out of codes and scales: every code, uneven blocks, groups in any order."""

import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

DTYPES = [torch.float32, torch.bfloat16]


def codes_of(dtype: torch.dtype, num_rows: int, num_columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (num_rows, num_columns), generator=generator, dtype=torch.uint8)
    codes.flatten()[:256] = torch.arange(256)  # all there are
    if dtype is torch.float8_e4m3fn:
        codes[(codes & 0x7F) == 0x7F] = 0x7E  # NaN has a test of its own
    return codes.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("group_size", [0, 1, 10, 45], ids="groups of {}".format)
def test_the_fast_one_gives_the_bits_of_the_reference(
    group_size: int, code: torch.dtype, dtype: torch.dtype
) -> None:
    """Groups of neighbours, the last of them smaller, or scattered (0)."""
    generator = torch.Generator().manual_seed(2)
    codes = codes_of(code, 37, 45)
    scales = torch.rand(8, 5, generator=generator) / 100  # five rows a scale, the last has two
    zeros = torch.randint(-8, 8, (8, 5), generator=generator, dtype=torch.int8)
    group_of = torch.randint(0, 5, (45,), generator=generator)
    if group_size:
        group_of = torch.arange(45) // group_size % 5
    weight = PackedWeight(codes, 8, GroupScales(scales), 9, 5, zeros, group_of=group_of)
    found, expected = CpuBackend.dequantize(weight, dtype), Backend.dequantize(weight, dtype)
    assert found.dtype is dtype
    assert torch.equal(found, expected)


def test_each_weight_has_the_scale_of_its_block_and_group() -> None:
    codes = codes_of(torch.int8, 5, 52)
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
