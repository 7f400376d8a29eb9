from typing import Any

import numba
import numpy as np

from pagedrun.kernels.cpu.simd.lanes import exp2


@numba.njit  # type: ignore[untyped-decorator]
def exp2_of(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = exp2(source[i])


def evaluate(x: Any) -> Any:
    source = np.asarray(x, np.float32)
    target = np.empty_like(source)
    exp2_of(source, target)
    return target


def test_relative_error_is_that_of_float32() -> None:
    x = np.linspace(-126, 126, 1_000_001).astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(evaluate(x) / exact - 1).max() < 2.5e-7


def test_whole_numbers_and_ends() -> None:
    whole = np.arange(-126, 128)
    assert (evaluate(whole) == np.exp2(whole.astype(np.float64))).all()
    assert (evaluate([-127.0, -1e30, -np.inf]) == 0).all()
    assert (evaluate([128.0, 1e30, np.inf]) == 2.0**127).all()
    assert np.isnan(evaluate([np.nan])).all()
