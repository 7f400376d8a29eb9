"""Products of a few rows with sixteen columns or more: numbers, strides, the order of a sum."""

from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product
from pagedrun.kernels.kernel_set import has_features

NUM_K = 37
Multiply = Any


def compiled(num_rows: int, num_vectors: int, *, are_neighbors: bool = False) -> Multiply:
    product = block_product(num_rows, num_vectors, are_neighbors=are_neighbors)

    @numba.njit  # type: ignore[untyped-decorator]
    def multiply(
        a: Any, a_start: Any, a_row: Any, a_k: Any, b: Any, b_start: Any, b_k: Any, num_k: Any,
        c: Any, c_start: Any, c_row: Any,
    ) -> None:  # fmt: skip
        product(a, a_start, a_row, a_k, b, b_start, b_k, num_k, c, c_start, c_row)

    return multiply


def chain(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return `c + a @ b` as one chain over k in ascending order, each step rounded once."""
    for k in range(a.shape[1]):
        c = (a[:, k : k + 1].astype(np.float64) * b[k] + c).astype(np.float32)
    return c


@pytest.fixture
def numbers() -> dict[str, NDArray[np.float32]]:
    """Few digits, so that float64 holds each step of a chain exactly before it is rounded."""
    rng = np.random.default_rng(0)
    shapes = {"a": (ROWS, NUM_K), "b": (NUM_K, 32), "c": (ROWS, 32)}
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: torch.from_numpy(each).bfloat16().float().numpy() for name, each in drawn.items()}


@pytest.mark.parametrize("num_vectors", [1, 2])
@pytest.mark.parametrize("num_rows", sorted({1, 2, ROWS}))
@pytest.mark.parametrize("b_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_floats_are_one_ascending_chain(
    num_rows: int,
    num_vectors: int,
    b_dtype: torch.dtype,
    transposed: bool,
    numbers: dict[str, NDArray[np.float32]],
) -> None:
    columns = 16 * num_vectors
    a, b = numbers["a"][:num_rows], numbers["b"][:, :columns]
    c = numbers["c"][:num_rows, :columns]
    # Each matrix lies in wider rows, some places after the beginning of its memory.
    flat_a = np.full(2000, np.nan, np.float32)
    a_row, a_k = (1, 11) if transposed else (41, 1)
    for i in range(num_rows):
        for k in range(NUM_K):
            flat_a[3 + i * a_row + k * a_k] = a[i, k]
    flat_b = torch.full((5 + NUM_K * 40,), torch.nan, dtype=b_dtype)
    for k in range(NUM_K):
        flat_b[5 + 40 * k : 5 + 40 * k + columns] = torch.from_numpy(b[k])
    flat_c = np.full(1000, 7.0, np.float32)
    for i in range(num_rows):
        flat_c[9 + 50 * i : 9 + 50 * i + columns] = c[i]
    expected = flat_c.copy()
    for i, row in enumerate(chain(a, b, c)):
        expected[9 + 50 * i : 9 + 50 * i + columns] = row
    for are_neighbors in {False, transposed}:
        multiply, found = (
            compiled(num_rows, num_vectors, are_neighbors=are_neighbors),
            flat_c.copy(),
        )
        multiply(flat_a, 3, a_row, a_k, as_array(flat_b), 5, 40, NUM_K, found, 9, 50)
        assert (found == expected).all()


def test_a_chain_that_is_interrupted_goes_on(numbers: dict[str, NDArray[np.float32]]) -> None:
    a, b, c = (numbers[name] for name in "abc")
    multiply, whole, pieces = compiled(ROWS, 2), c.copy(), c.copy()
    multiply(a, 0, NUM_K, 1, b, 0, 32, NUM_K, whole, 0, 32)
    for start, end in ((0, 1), (1, 20), (20, 20), (20, NUM_K)):
        multiply(a, start, NUM_K, 1, b, 32 * start, 32, end - start, pieces, 0, 32)
    assert (whole == pieces).all()
    assert (whole == chain(a, b, c)).all()


def words(pairs: torch.Tensor) -> NDArray[np.uint32]:
    """Return neighbours along the last dimension as words, the first in the lower half."""
    return pairs.contiguous().view(torch.int32).numpy().view(np.uint32)


@pytest.mark.skipif(not has_features("avx512bf16"), reason="needs AVX512-BF16")
@pytest.mark.parametrize("num_vectors", [1, 2])
@pytest.mark.parametrize("num_rows", [1, ROWS])
def test_pairs_of_bfloat16(num_rows: int, num_vectors: int) -> None:
    torch.manual_seed(0)
    columns, num_pairs = 16 * num_vectors, 21
    a = torch.randn(num_rows, 2 * num_pairs).bfloat16()
    b = torch.randn(2 * num_pairs, columns).bfloat16()
    c = torch.randn(num_rows, columns)
    # Rows of a are 46 elements long, those of b 40 words, those of c 35 numbers.
    flat_a = torch.full((num_rows, 46), torch.nan, dtype=torch.bfloat16)
    flat_a[:, : 2 * num_pairs] = a
    flat_b = torch.full((num_pairs, 40, 2), torch.nan, dtype=torch.bfloat16)
    flat_b[:, :columns] = b.view(num_pairs, 2, columns).transpose(1, 2)
    flat_c = np.full((num_rows, 35), 7.0, np.float32)
    flat_c[:, :columns] = c.numpy()
    multiply = compiled(num_rows, num_vectors)
    multiply(as_array(flat_a), 0, 46, 2, words(flat_b), 0, 40, num_pairs, flat_c, 0, 35)
    exact = c.double() + a.double() @ b.double()
    assert np.abs(flat_c[:, :columns] - exact.numpy()).max() < 1e-5
    assert (flat_c[:, columns:] == 7).all()
    # One row alone, its pairs in two halves: the same bits.
    alone, one = np.zeros(35, np.float32), compiled(1, num_vectors)
    alone[:columns] = c[-1].numpy()
    last = as_array(flat_a[-1])
    one(last, 0, 46, 2, words(flat_b), 0, 40, 9, alone, 0, 35)
    one(last, 18, 46, 2, words(flat_b), 9 * 40, 40, num_pairs - 9, alone, 0, 35)
    assert (alone[:columns] == flat_c[-1, :columns]).all()
