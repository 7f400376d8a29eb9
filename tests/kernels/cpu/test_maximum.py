from typing import Any

import numba
import numpy as np
import pytest

from pagedrun.kernels.cpu.simd.lanes import largest


@numba.njit  # type: ignore[untyped-decorator]
def largest_of(values: Any) -> Any:
    return largest(values)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 128, 1001])
@pytest.mark.parametrize("offset", [-100.0, 0.0, 100.0])
def test_is_the_maximum(size: int, offset: float) -> None:
    random = np.random.default_rng(size)
    for _ in range(20):
        values = (random.standard_normal(size) + offset).astype(np.float32)
        assert largest_of(values) == values.max()


def test_infinities_and_nan() -> None:
    inf, nan = np.inf, np.nan
    assert largest_of(np.array([-inf, -inf], np.float32)) == -inf
    assert largest_of(np.array([-inf, -5.0, inf], np.float32)) == inf
    assert np.isnan(largest_of(np.array([1.0, nan, inf], np.float32)))
    assert largest_of(np.array([-0.0, -1.0], np.float32)) == 0
