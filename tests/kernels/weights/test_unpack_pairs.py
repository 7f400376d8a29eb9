"""Weights out of bytes of two codes: which half is first, and whose scale is whose."""

import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_bytes", "num_groups"), [(24, 3), (8, 1), (6, 6)])
def test_the_fast_one_gives_the_bits_of_the_reference(
    num_bytes: int, num_groups: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(4)
    pairs = torch.randint(0, 256, (37, num_bytes), generator=generator, dtype=torch.uint8)
    table = torch.randn(16, generator=generator)
    scales = torch.rand(37, num_groups, generator=generator)
    given = (pairs, table, scales, dtype)
    found, expected = CpuBackend.unpack_pairs(*given), Backend.unpack_pairs(*given)
    assert found.dtype is dtype
    assert torch.equal(found, expected)


def test_the_low_half_comes_first_and_each_group_has_its_scale() -> None:
    pairs = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8)
    table, scales = torch.arange(16.0), torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    for backend in (Backend, CpuBackend):
        weights = backend.unpack_pairs(pairs, table, scales, torch.float32)
        assert weights.tolist() == [[1, 2, 30, 40], [500, 600, 7000, 8000]]


def test_a_scale_that_is_no_number_stays_none() -> None:
    pairs, scales = torch.zeros(1, 1, dtype=torch.uint8), torch.full((1, 1), torch.nan)
    assert CpuBackend.unpack_pairs(pairs, torch.ones(16), scales, torch.bfloat16).isnan().all()
