"""Linear layers of int8: the same bytes from every kernel, and each row's own."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu import jit
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears import int8_linear
from pagedrun.kernels.cpu.linears.int8_linear import (
    CACHED_ROWS,
    Int8Amx,
    Int8Quads,
    Products,
    joined_gelu_mlp,
    shifted_rows,
)
from pagedrun.kernels.cpu.linears.int8_linear import Int8Linear as CpuInt8Linear
from pagedrun.kernels.gpu.linear import Int8Linear as GpuInt8Linear
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.reference.linear import LOWEST_CODE, MAX_IN_FEATURES
from pagedrun.kernels.reference.linear import Int8Linear as PlainInt8Linear
from pagedrun.kernels.reference.linear import shifted_rows as plain_shifted_rows
from tests.support.every_pair import every_pair, long_except

DTYPES = [torch.float32, torch.bfloat16]
Way = tuple[torch.dtype, bool]  # of inputs, and whether they are shifted
WAYS: list[Way] = [*product(DTYPES, [False, True])]
# Kernels of their own; models with this pair of layers are encoders.
JOINED_WAYS: list[Way] = [(torch.float32, True), (torch.bfloat16, False)]
MAX_ROWS = 70
Make = Callable[[Tensor, Tensor, Tensor | None, bool], CpuInt8Linear]


@pytest.fixture(params=[Int8Amx, Int8Quads])
def make(request: pytest.FixtureRequest) -> Make:
    """Make a layer with each kind of products that runs here."""
    products: type[Products] = request.param
    if products is Int8Amx and not KernelSet.AMX.is_supported:
        pytest.skip("this processor has no tiles")
    return lambda codes, scales, bias, shifts: CpuInt8Linear(
        codes, scales, bias, products=products, shifts=shifts
    )


def random_codes(num_out: int, num_in: int) -> Tensor:
    """Return codes of which all are drawn, -128 too, which checkpoints may have."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-128, 128, (num_out, num_in), generator=generator, dtype=torch.int8)


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype is expected.dtype
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.0), expected.nan_to_num(0.0))


@every_pair(
    in_turn="shape",
    way=WAYS,
    has_bias=[True, False],
    shape=[(64, 32), (333, 100), (1094, 33)],
)
def test_every_number_of_rows_gives_the_bytes_of_the_reference(
    way: Way, has_bias: bool, shape: tuple[int, int], make: Make
) -> None:
    (dtype, shifts), (num_in, num_out) = way, shape
    generator = torch.Generator().manual_seed(2)
    codes, scales = random_codes(num_out, num_in), torch.rand(num_out, generator=generator)
    bias = torch.randn(num_out, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(MAX_ROWS, num_in, generator=generator).to(dtype)
    x[3], x[4, 0], x[5, 1] = 0.0, torch.nan, -torch.inf
    x[6] *= 1e-38
    x[7] *= 1e37
    x[8], x[9] = x[8].abs() + 3.0, -x[9].abs() - 3.0
    layer = make(codes, scales, bias, shifts)
    assert (layer.in_features, layer.out_features) == (num_in, num_out)
    of_output = num_in + (8 if shifts else 4) + (dtype.itemsize if has_bias else 0)
    assert layer.num_bytes == num_out * of_output
    expected = PlainInt8Linear(codes, scales, bias, shifts=shifts)(x)
    assert expected[4:6].isnan().all()
    assert not expected[:4].isnan().any()
    for num_rows in range(1, MAX_ROWS + 1):
        assert_same(layer(x[:num_rows]), expected[:num_rows])
    assert_same(layer(x[-1:]), expected[-1:])
    assert len(layer(x[:0])) == 0


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_do_not_overflow(sign: float, shifts: bool, make: Make) -> None:
    codes = torch.full((32, MAX_IN_FEATURES), -128, dtype=torch.int8)
    codes[1] = 127
    x = torch.full((2, MAX_IN_FEATURES), sign)
    y = make(codes, torch.ones(32), None, shifts)(x)
    assert_same(y, PlainInt8Linear(codes, torch.ones(32), shifts=shifts)(x))
    assert y[0, 0] == pytest.approx(-128 * sign * MAX_IN_FEATURES)


def test_more_terms_than_fit_a_sum_are_refused(make: Make) -> None:
    codes = torch.zeros(1, MAX_IN_FEATURES + 1, dtype=torch.int8)
    with pytest.raises(ValueError, match="at most 65536 terms"):
        make(codes, torch.ones(1), None, False)


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 17, 70])
def test_a_gpu_gives_the_bytes_of_the_reference(
    num_rows: int, dtype: torch.dtype, shifts: bool, gpu_device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(3)
    codes, scales = random_codes(50, 333), torch.rand(50, generator=generator) / 100
    x = torch.randn(num_rows, 333, generator=generator).to(dtype)
    bias = torch.randn(50, generator=generator).to(dtype)
    expected = PlainInt8Linear(codes, scales, bias, shifts=shifts)(x)
    there = [each.to(gpu_device) for each in (codes, scales, bias)]
    assert_same(GpuInt8Linear(*there, shifts=shifts)(x.to(gpu_device)).cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_columns", [16, 64, 333])
def test_rows_are_quantised_as_the_reference_does(num_columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(9, num_columns, generator=generator).to(dtype)
    x[1], x[2, -1], x[3, 0] = 0.0, torch.nan, torch.inf
    x[4] *= 1e-38
    codes, scales = CpuBackend.quantize_rows(x)
    expected_codes, expected_scales = Backend.quantize_rows(x)
    assert_same(scales, expected_scales)
    is_number = scales.isfinite()
    assert is_number.sum() == 7
    assert torch.equal(codes[is_number], expected_codes[is_number])


def test_codes_are_the_nearest_halves_to_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -1.5, 2.4, 2.6, -127.0]])
    codes, scales = CpuBackend.quantize_rows(x)
    assert codes.tolist() == [[127, 0, 2, 0, -2, 2, 3, -127]]
    assert scales.tolist() == [1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_columns", [16, 64, 333])
def test_rows_are_shifted_as_the_reference_does(num_columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(13, num_columns, generator=generator).to(dtype)
    x[1], x[2, -1], x[3, 0], x[4] = 0.0, torch.nan, torch.inf, x[4] * 1e-38
    x[5], x[6], x[7] = x[5].abs() + 3.0, -x[6].abs() - 3.0, torch.nn.functional.gelu(x[7])
    x[8, 0], x[8, 1], x[9] = 3e38, -3e38, -0.0  # further apart than any number
    found, expected = shifted_rows(x), plain_shifted_rows(x)
    is_number = expected[1].isfinite()
    assert (~is_number).nonzero().flatten().tolist() == [2, 3, 8]
    for ours, its in zip(found, expected, strict=True):
        assert_same(ours[is_number], its[is_number])
    assert found[1][~is_number].isnan().all()
    codes, scales, shifts = (each[is_number].double() for each in found)
    assert codes[1:].amin() == LOWEST_CODE
    error = (codes + shifts[:, None]) * scales[:, None] - x[is_number].double()
    assert (error.abs() <= 0.5001 * scales[:, None]).all()


def test_zeros_stay_zeros_and_halves_go_to_even() -> None:
    x = torch.tensor([[250.0, -4.0, 0.0, 0.5, 1.5, -0.5, -2.5], [0.0] * 7])
    codes, scales, shifts = shifted_rows(x)
    assert scales.tolist()[0] == 1.0
    assert shifts.tolist() == [124, 128]
    assert (codes + shifts[:, None]).tolist() == [[250, -4, 0, 0, 2, 0, -2], [0] * 7]


# Rows at both sides of whole blocks, and of what all threads take together.
@pytest.mark.parametrize("way", long_except(WAYS, JOINED_WAYS))
@every_pair(
    in_turn="shape",
    num_threads=[1, 2],
    has_bias=[True, False],
    shape=[(64, 96), (384, 1536), (333, 100), (70, 33)],
)
def test_layers_joined_by_gelu_give_the_bytes_of_the_three_operations(
    way: Way,
    num_threads: int,
    has_bias: bool,
    shape: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (dtype, shifts), (num_in, num_inner) = way, shape
    monkeypatch.setattr(int8_linear, "num_threads", lambda: num_threads)
    monkeypatch.setattr(jit, "num_threads", lambda: num_threads)
    generator = torch.Generator().manual_seed(5)

    def layer(num_out: int, num_in: int) -> CpuInt8Linear:
        codes, scales = random_codes(num_out, num_in), torch.rand(num_out, generator=generator)
        bias = torch.randn(num_out, generator=generator).to(dtype) if has_bias else None
        scales /= 100
        return CpuInt8Linear(codes, scales, bias, products=Int8Quads, shifts=shifts)

    up, down = layer(num_inner, num_in), layer(50, num_inner)
    x = torch.randn(100, num_in, generator=generator).to(dtype)
    x[3], x[4, 0], x[30, 1] = 0.0, torch.nan, -torch.inf
    x[6] *= 1e-38
    x[7] *= 1e37
    expected = down(CpuBackend.gelu(up(x)))
    assert expected[[4, 30]].isnan().all()
    joined = 0
    for num_rows in (*range(1, 81), 100):
        found = joined_gelu_mlp(up, down, x[:num_rows])
        joined += found is not None
        assert_same(CpuBackend().gelu_mlp(up, down, x[:num_rows]), expected[:num_rows])
        if found is not None:
            assert_same(found, expected[:num_rows])
    assert joined == 82 - num_threads * CACHED_ROWS


def test_only_int8_layers_in_quads_are_joined() -> None:
    codes = random_codes(64, 64)
    one = CpuInt8Linear(codes, torch.rand(64), products=Int8Quads)
    x = torch.randn(512, 64)
    assert joined_gelu_mlp(one, one, x) is not None
    other = CpuBackend().pack_linear(codes.float() / 100)
    assert joined_gelu_mlp(one, other, x) is None
    assert_same(CpuBackend().gelu_mlp(one, other, x), other(CpuBackend.gelu(one(x))))
