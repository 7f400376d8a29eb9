"""Codes out of words, whatever their width and order."""

import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.mark.parametrize(
    ("num_bits", "order"),
    [(2, tuple(range(16))), (4, tuple(range(8))), (4, AWQ), (8, (3, 1, 0, 2))],
)
def test_codes_come_out_where_they_were_put(num_bits: int, order: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    half = 2 ** (num_bits - 1)
    codes = torch.randint(-half, half, (9, 5 * len(order)), generator=generator)
    words = torch.zeros(9, 5, dtype=torch.int64)
    for place, element in enumerate(order):
        words += (codes[:, element :: len(order)] + half) << (place * num_bits)
    packed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    for backend in (Backend, CpuBackend):
        found = backend.unpack_codes(packed, num_bits, order)
        assert found.dtype is torch.int8
        assert torch.equal(found.long(), codes)
