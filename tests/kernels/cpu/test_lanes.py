"""Numbers one and sixteen at a time: powers, order, sums, rounding; ends, zeros and NaN."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.simd import lanes, words
from pagedrun.kernels.cpu.simd.lanes import load, store

NAN, INF = np.nan, np.inf
N = lanes.NUM_LANES
# Pairs of numbers in all orders, equal ones, and each with NaN on either side and both.
SPECIAL = [-INF, -2.0, -0.0, 0.0, 1.5, INF, NAN]
A, B = (np.resize(each, 64).astype(np.float32) for each in zip(
    *((a, b) for a in SPECIAL for b in SPECIAL), strict=True
))  # fmt: skip


def each_lane(apply: Any, *operands: Any) -> Any:
    """Return what an operation gives for arrays of a multiple of sixteen numbers."""
    out = np.empty_like(operands[0])
    for start in range(0, len(out), N):
        apply(*operands, start, out)
    return out


@numba.njit  # type: ignore[untyped-decorator]
def _exp2(x: Any, start: Any, out: Any) -> None:
    store(out, start, lanes.exp2_lanes(load(x, start)))


@numba.njit  # type: ignore[untyped-decorator]
def _larger(a: Any, b: Any, start: Any, out: Any) -> None:
    store(out, start, lanes.larger(load(a, start), load(b, start)))


@numba.njit  # type: ignore[untyped-decorator]
def _smaller(a: Any, b: Any, start: Any, out: Any) -> None:
    store(out, start, lanes.smaller(load(a, start), load(b, start)))


@numba.njit  # type: ignore[untyped-decorator]
def _where_less(a: Any, b: Any, this: Any, other: Any, start: Any, out: Any) -> None:
    chosen = lanes.where_less(load(a, start), load(b, start), load(this, start), load(other, start))
    store(out, start, chosen)


@numba.njit  # type: ignore[untyped-decorator]
def _any_less(a: Any, b: Any) -> Any:
    return lanes.any_less(load(a, 0), load(b, 0))


@numba.njit  # type: ignore[untyped-decorator]
def _arithmetic(a: Any, b: Any, c: Any, start: Any, out: Any) -> None:
    x, y, z = load(a, start), load(b, start), load(c, start)
    store(out, start, lanes.fused(x, y, z) + (x - y) * lanes.splat(np.float32(3.0)) / z)


@numba.njit  # type: ignore[untyped-decorator]
def _exp2_of_one(x: Any, start: Any, out: Any) -> None:
    for i in range(start, start + N):
        out[i] = lanes.exp2(x[i])


EXP2 = pytest.mark.parametrize("apply", [_exp2, _exp2_of_one], ids=["lanes", "one"])


@EXP2
def test_exp2_is_as_exact_as_float32(apply: Any) -> None:
    x = np.linspace(-126, 126, 1 << 20).astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(each_lane(apply, x) / exact - 1).max() < 2.5e-7


@EXP2
def test_exp2_of_whole_numbers_and_ends(apply: Any) -> None:
    whole = np.resize(np.arange(-126, 128), 256).astype(np.float32)
    assert (each_lane(apply, whole) == np.exp2(whole.astype(np.float64))).all()
    below = np.resize(np.array([-127, -1e30, -INF], np.float32), N)
    zeros = each_lane(apply, below)
    assert (zeros == 0).all()
    assert not np.signbit(zeros).any()
    assert np.isnan(each_lane(apply, np.full(N, NAN, np.float32))).all()


def test_exp2_of_one_number_stays_finite() -> None:
    above = np.resize(np.array([128.0, 1e30, INF], np.float32), N)
    assert (each_lane(_exp2_of_one, above) == 2.0**127).all()


@numba.njit  # type: ignore[untyped-decorator]
def _largest(values: Any) -> Any:
    return lanes.largest(values)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 128, 1001])
@pytest.mark.parametrize("offset", [-100.0, 0.0, 100.0])
def test_largest_is_the_maximum(size: int, offset: float) -> None:
    random = np.random.default_rng(size)
    for _ in range(20):
        values = (random.standard_normal(size) + offset).astype(np.float32)
        assert _largest(values) == values.max()


def test_largest_of_infinities_zeros_and_nan() -> None:
    cases = (
        ([-INF, -INF], -INF),
        ([-INF, -5.0, INF], INF),
        ([1.0, NAN, INF], NAN),
        ([-0.0, -1], 0),
    )
    for values, expected in cases:
        assert np.array_equal(_largest(np.array(values, np.float32)), expected, equal_nan=True)


def test_a_lane_does_not_depend_on_its_neighbours() -> None:
    x = np.linspace(-50, 50, N).astype(np.float32)
    together = each_lane(_exp2, x)
    x[1::2] = [NAN, INF, -INF, 127, 0, -127, 5, NAN]
    assert (each_lane(_exp2, x)[::2] == together[::2]).all()


@pytest.mark.parametrize(
    ("apply", "is_first"), [(_larger, np.greater), (_smaller, np.less)], ids=["larger", "smaller"]
)
def test_the_second_is_taken_where_either_is_nan(
    apply: Any, is_first: Callable[[Any, Any], Any]
) -> None:
    """Equal numbers, zeros of both signs among them, give the second too."""
    expected = np.where(is_first(A, B), A, B)
    assert (each_lane(apply, A, B).view(np.int32) == expected.view(np.int32)).all()


def test_where_less() -> None:
    this, other = np.arange(64, dtype=np.float32), -np.arange(1, 65, dtype=np.float32)
    assert (each_lane(_where_less, A, B, this, other) == np.where(A < B, this, other)).all()


def test_any_less() -> None:
    zeros, ones = np.zeros(N, np.float32), np.ones(N, np.float32)
    assert not _any_less(zeros, zeros)
    assert not _any_less(zeros, np.full(N, NAN, np.float32))
    for lane in range(N):
        one = zeros.copy()
        one[lane] = 1
        assert _any_less(zeros, one), lane
        assert not _any_less(one, zeros), lane
    assert _any_less(zeros, ones)


@numba.njit  # type: ignore[untyped-decorator]
def _store_sums(x: Any, out: Any) -> None:
    a, b, c, d = load(x, 0), load(x, N), load(x, 2 * N), load(x, 3 * N)
    lanes.store_sums(out, 1, a, b, 5, c, d)


@numba.njit  # type: ignore[untyped-decorator]
def _sum_of_lanes(x: Any, start: Any) -> Any:
    return lanes.sum_of_lanes(load(x, start))


def test_four_sums_have_the_bits_of_each_alone() -> None:
    x = np.random.default_rng(0).normal(size=4 * N).astype(np.float32) * np.float32(1e3)
    x[2 * N + 3] = NAN
    out = np.full(8, 7, np.float32)
    _store_sums(x, out)
    alone = [_sum_of_lanes(x, start) for start in range(0, 4 * N, N)]
    expected = np.array([7, *alone[:2], 7, 7, *alone[2:], 7], np.float32)
    assert np.isnan(out[5])
    assert np.array_equal(out, expected, equal_nan=True)
    order = x[:N].astype(np.float32)
    for step in (8, 4, 2, 1):
        order = order[:step] + order[step:]
    assert out[1] == order[0]  # halves to halves


def test_arithmetic() -> None:
    """`fused` rounds once; all else after each step."""
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 1 << 12)).astype(np.float32)
    exact = a.astype(np.float64) * b + c  # 48 digits of a product and those of c: in float64 enough
    rest = (a - b) * np.float32(3) / c
    expected = exact.astype(np.float32) + rest
    assert (each_lane(_arithmetic, a, b, c) != expected).mean() < 1e-3  # double rounding, rarely


@numba.njit  # type: ignore[untyped-decorator]
def _store_halves(value: Any, out: Any) -> None:
    for start in range(0, value.shape[0], 16):
        words.store_halves(out, start, load(value, start))


@numba.njit  # type: ignore[untyped-decorator]
def _store_pairs(even: Any, odd: Any, out: Any) -> None:
    for start in range(0, even.shape[0], 16):
        words.store_pairs(out, start, load(even, start), load(odd, start))


def numbers_to_round() -> torch.Tensor:
    """Return every exponent and sign with the ties, what lies next to them, and random bits."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32) << 16
    near_ties = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (1 << 16,), generator=generator).int()
    return torch.cat([bits, *near_ties]).view(torch.float32)


@numba.njit  # type: ignore[untyped-decorator]
def _narrow(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = from_float32(source[i], target)


@numba.njit  # type: ignore[untyped-decorator]
def _widen(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = to_float32(source[i])


@pytest.mark.parametrize("apply", [_store_halves, _narrow], ids=["lanes", "one"])
def test_halves_are_rounded_as_torch_does(apply: Any) -> None:
    wide = numbers_to_round()
    out = torch.empty(len(wide), dtype=torch.bfloat16)
    apply(as_array(wide), as_array(out))
    expected = wide.bfloat16()
    assert torch.equal(out.isnan(), expected.isnan())
    number = ~expected.isnan()
    assert torch.equal(out[number].view(torch.int16), expected[number].view(torch.int16))


def test_every_bfloat16_widens_to_its_value() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    wide = torch.empty(2**16)
    _widen(as_array(every), as_array(wide))
    assert torch.equal(wide.view(torch.int32), every.float().view(torch.int32))


def test_arrays_are_the_memory_of_the_tensor() -> None:
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    as_array(tensor)[1] = np.uint16(0x3F80)
    assert tensor.tolist() == [0.0, 1.0, 0.0]


def test_pairs_are_rounded_to_the_nearest_ties_away_from_zero() -> None:
    wide = numbers_to_round()
    even, odd = wide[wide == wide], wide[wide == wide].flip(0)  # numbers, no NaN
    num_whole = len(even) // N * N
    even, odd = even[:num_whole].contiguous(), odd[:num_whole].contiguous()
    out = torch.empty(2 * num_whole, dtype=torch.bfloat16)
    _store_pairs(even.numpy(), odd.numpy(), out.view(torch.int32).numpy().view(np.uint32))
    bits = torch.stack([even, odd], dim=1).flatten().view(torch.int32)
    expected = ((bits.long() + 0x8000) >> 16).to(torch.int16)  # half is added to the magnitude
    assert torch.equal(out.view(torch.int16), expected)


def test_pairs_keep_the_nan_that_arithmetic_gives() -> None:
    nan = np.resize(np.array([NAN, -NAN, 1.0], np.float32), N)
    out = torch.empty(2 * N, dtype=torch.bfloat16)
    _store_pairs(nan, nan[::-1].copy(), out.view(torch.int32).numpy().view(np.uint32))
    expected = torch.from_numpy(np.stack([nan, nan[::-1]], axis=1).flatten())
    assert torch.equal(out.isnan(), expected.isnan())


@numba.njit  # type: ignore[untyped-decorator]
def _transpose_words(source: Any, target: Any) -> None:
    words.transpose_words(source, 3, 19, target, 2, 21)


@numba.njit  # type: ignore[untyped-decorator]
def _transpose_pairs(source: Any, target: Any) -> None:
    words.transpose_pairs(source, 3, 400, 19, target, 2, 37)


@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
def test_words_are_transposed(dtype: Any) -> None:
    """Between rows that are further apart than they are long; nothing else is written."""
    source = np.arange(400).astype(dtype)
    target = np.full(400, 1000, dtype)
    expected = target.copy()
    for row in range(16):
        for column in range(16):
            expected[2 + 21 * column + row] = source[3 + 19 * row + column]
    _transpose_words(source, target)
    assert (target == expected).all()


@pytest.mark.parametrize("size", [8, 16])
def test_four_codes_become_two_pairs(size: int) -> None:
    """The first with the third, the second with the fourth, with their signs."""
    turn = words.transposing(size, in_pairs=True)

    @numba.njit  # type: ignore[untyped-decorator]
    def turned(source: Any, target: Any) -> None:
        turn(source, 3, 19, target, 2, 21)

    source = np.random.default_rng(size).integers(-128, 128, (400, 4)).astype(np.int8)
    target = np.full(800, 1000, np.int32)
    expected = target.copy().view(np.int16).reshape(-1, 2)
    for row in range(size):
        for column in range(size):
            codes = source[3 + 19 * row + column]
            for part in range(2):
                expected[2 + 21 * (2 * column + part) + row] = codes[[part, part + 2]]
    turned(source.view(np.int32)[:, 0], target)
    assert (target == expected.view(np.int32)[:, 0]).all()


def test_pairs_are_transposed() -> None:
    """Two blocks of sixteen rows from two places become the columns of one."""
    source = np.arange(800, dtype=np.uint16)
    target = np.full(700, 60_000, np.uint16)
    expected = target.copy()
    for row in range(32):
        start = 3 + 19 * row if row < 16 else 400 + 19 * (row - 16)
        for column in range(16):
            expected[2 + 37 * column + row] = source[start + column]
    _transpose_pairs(source, target)
    assert (target == expected).all()
