"""Memory from a cache line on, outside kernels and inside."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import kernel
from pagedrun.kernels.cpu.simd.arrays import (
    LINE_BYTES,
    aligned_empty,
    aligned_floats,
    aligned_zeros,
)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.uint32])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (700, 1000)])
def test_outside_kernels(shape: tuple[int, ...], dtype: Any) -> None:
    arrays = [aligned_empty(shape, dtype) for _ in range(8)]  # at once, so at different addresses
    for array in arrays:
        assert array.shape == shape
        assert array.dtype == dtype
        assert array.flags["C_CONTIGUOUS"]
        assert array.ctypes.data % LINE_BYTES == 0


@kernel
def _addresses(halves: Any, floats: Any, addresses: Any) -> None:
    for i in range(addresses.shape[0]):
        zeros = aligned_zeros(100 + i, np.uint16)
        sums = aligned_floats(30 + i)
        halves[i] = zeros.sum() + zeros.shape[0]
        floats[i] = sums.shape[0]
        addresses[i, 0], addresses[i, 1] = zeros.ctypes.data, sums.ctypes.data


def test_inside_kernels() -> None:
    halves: NDArray[np.int64] = np.zeros(40, np.int64)
    floats, addresses = np.zeros_like(halves), np.zeros((40, 2), np.int64)
    _addresses(halves, floats, addresses)
    assert (addresses % LINE_BYTES == 0).all()
    assert halves.tolist() == [100 + i for i in range(40)]
    assert floats.tolist() == [30 + i for i in range(40)]
