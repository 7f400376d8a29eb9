"""Products of quantized weights with inputs rounded to int8: the bytes of the reference.

A set, a feature level, a batch or a number of threads that gave other bytes than the reference
would fail here on its own processor, and by mask on others.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.quantized.linear import QuantizedLinear
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight, beside
from pagedrun.kernels.reference.quantized import block_sizes, fused, multiply_int8
from tests.support.every_pair import every_pair, long_except
from tests.support.kernel_cases import (
    DTYPES,
    THREADS,
    USUAL_PRODUCTS,
    assert_rows_keep_their_bytes,
    misaligned,
    skip_unless_supported,
    threads,
)
from tests.support.packed_forms import FORMS, USUAL_FORMS, halves, random

INTEGERS = {name: form for name, form in FORMS.items() if name != "float8"}
ROW_COUNTS = [*range(1, 81)]
OUT = 70  # two panels and a part


def layer(
    weight: PackedWeight,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    kernel_set: KernelSet | None = None,
) -> QuantizedLinear:
    return QuantizedLinear(weight, bias, kernel_set, dtype=dtype, activations=Activations.INT8)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(8))


def same(found: Tensor, expected: Tensor) -> bool:
    """Compare bytes; NaN equals NaN."""
    is_nan = torch.equal(found.isnan(), expected.isnan())
    return is_nan and torch.equal(found.nan_to_num(0.0), expected.nan_to_num(0.0))


@pytest.mark.parametrize("dtype", long_except(DTYPES, [torch.float32]))
@every_pair(
    form=long_except(INTEGERS, USUAL_FORMS),
    columns=[256, 768, 1280],
    has_bias=[True, False],
    num_threads=THREADS,
)
def test_the_bytes_of_the_reference_in_every_batch(
    form: str, columns: int, dtype: torch.dtype, has_bias: bool, num_threads: int
) -> None:
    """1,280 inputs are five chunks, 768 three."""
    weight = INTEGERS[form](OUT, columns)
    bias = random(OUT, seed=7).to(dtype) if has_bias else None
    x = normal(ROW_COUNTS[-1], columns).to(dtype)
    expected = multiply_int8(x, weight, bias)
    with threads(num_threads):
        for kernel_set in KernelSet.supported():
            multiply = layer(weight, bias, dtype, kernel_set)
            assert torch.equal(multiply(x), expected), kernel_set
            assert_rows_keep_their_bytes(multiply, x, expected, ROW_COUNTS)
        assert torch.equal(multiply(misaligned(x)), expected)
        assert torch.equal(multiply(x[::3]), expected[::3])


@pytest.mark.parametrize(
    "form", long_except(["q4_0", "awq", "q8_0", "rows_of_four_bits", "int8_rows"], USUAL_FORMS)
)
@pytest.mark.parametrize("shape", [(1, 40), (33, 333), (300, 576)])
def test_odd_sizes(form: str, shape: tuple[int, int]) -> None:
    """Inputs that fill neither a word nor a step, and more rows than a batch of them."""
    weight = INTEGERS[form](*shape)
    multiply = layer(weight)
    for num_rows in (1, 2, 7, 40, 389, 800):
        x = normal(num_rows, shape[1])
        assert torch.equal(multiply(x), multiply_int8(x, weight)), num_rows
    assert multiply(x[:0]).shape == (0, shape[0])


def extreme(num_bits: int, low: int, high: int, columns: int) -> PackedWeight:
    """Return rows of the largest code, the smallest, both in turn, and with each quad of them."""
    codes = torch.full((8, columns), high, dtype=torch.int8)
    codes[1] = low
    codes[2, ::2] = low
    codes[3, ::4] = low
    codes[4, 1::4] = low
    codes[5, columns // 2 :] = low
    codes[6, :3] = low
    minima = None if low else GroupScales(torch.full((8, columns // 32), 0.5).half())
    return PackedWeight(codes, num_bits, halves(8, columns // 32), 32, minima=minima)


@pytest.mark.parametrize(
    ("num_bits", "low", "high"),
    [(4, -8, 7), (4, 0, 15), (5, -16, 15), (5, 0, 31), (6, -32, 31), (8, -128, 127)],
)
def test_no_sum_saturates(num_bits: int, low: int, high: int) -> None:
    """`vpmaddubsw` adds two products in 16 bits: with the largest codes everywhere, a sum that did
    not fit would be another."""
    columns = 512
    weight = extreme(num_bits, low, high, columns)
    x = torch.ones(40, columns)
    x[1] = -1.0
    x[2, ::2] = -1.0
    x[3, 1::2] = -1.0
    x[4, ::3] = 0.0
    x[5] = torch.linspace(-1, 1, columns)
    assert torch.equal(layer(weight)(x), multiply_int8(x, weight))


@pytest.mark.parametrize("size", [2.0**-120, 1e-30, 1e30])
def test_tiny_and_huge_inputs(size: float) -> None:
    weight = FORMS["q4_k"](OUT, 256)
    x = normal(9, 256) * size
    x[3] = 0.0
    expected = multiply_int8(x, weight)
    assert expected.isfinite().all()
    assert torch.equal(layer(weight)(x), expected)


@pytest.mark.parametrize("scale", [2.0**-24, 65504.0])
def test_smallest_and_largest_scales(scale: float) -> None:
    """Of float16: denormal ones too."""
    weight = FORMS["q4_0"](OUT, 256)
    weight.scales.values[::2] = scale
    x = normal(9, 256)
    assert torch.equal(layer(weight)(x), multiply_int8(x, weight))


@pytest.mark.parametrize("form", ["q4_0", "q4_k", "awq", "q6_k", "q8_0"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_nan_stays_in_its_row(form: str, wrong: float) -> None:
    weight = FORMS[form](OUT, 256)
    multiply = layer(weight)
    x = normal(37, 256)
    expected = multiply(x)
    x[36, 200] = wrong
    found = multiply(x)
    assert found[36].isnan().all()
    assert torch.equal(found[:36], expected[:36])
    assert same(found, multiply_int8(x, weight))


@pytest.mark.parametrize("form", long_except(INTEGERS, USUAL_FORMS))
def test_rounding_moves_little(form: str) -> None:
    """By less than a hundredth of the largest output: half a code of 127 in every input."""
    weight = INTEGERS[form](96, 1024)
    x = normal(32, 1024)
    exact = x.double() @ CpuBackend.dequantize(weight, torch.float32).double().T
    error = (layer(weight)(x).double() - exact).abs().max() / exact.abs().max()
    assert 0 < error < 0.01


def test_sizes_of_blocks() -> None:
    """A block of inputs never spans groups of weights, but for groups of sixteen."""
    sizes = {name: block_sizes(form(32, 256)) for name, form in INTEGERS.items()}
    assert sizes["q4_k"] == sizes["q8_0"] == (32, 32)
    assert sizes["q6_k"] == (32, 16)
    assert sizes["awq"] == sizes["int8_rows"] == (128, 128)
    groups_of_96 = PackedWeight(torch.zeros(4, 192, dtype=torch.int8), 4, halves(4, 2), 96)
    assert block_sizes(groups_of_96) == (32, 32)
    x = normal(5, 192)
    assert torch.equal(layer(groups_of_96)(x), multiply_int8(x, groups_of_96))


def test_floats_stay_exact() -> None:
    """Codes that are floats have no integer sums."""
    weight, x = FORMS["float8"](OUT, 256), normal(5, 256)
    backends = [CpuBackend(None, each) for each in (Activations.INT8, Activations.EXACT)]
    one, other = (each.pack_quantized(weight, torch.float32)(x) for each in backends)
    assert torch.equal(one, other)


def products_of_experts() -> Iterator[Any]:
    """Yield forms with each way of multiplication; of one form the default run has all."""
    for form in ("q4_0", "q4_1", "awq", "q5_k", "q6_k", "q8_0", "float8"):
        for way in product(Activations, DTYPES):
            is_short = form == "awq" or (form in USUAL_FORMS and way in USUAL_PRODUCTS)
            yield pytest.param(form, *way, marks=() if is_short else pytest.mark.long)


@pytest.mark.parametrize(("form", "activations", "dtype"), products_of_experts())
@pytest.mark.parametrize("kernel_set", [KernelSet.AMX, KernelSet.PORTABLE])
def test_experts_have_the_bytes_of_single_layers(
    form: str, activations: Activations, dtype: torch.dtype, kernel_set: KernelSet
) -> None:
    """Of an expert without rows no weight is read; rows may repeat and come in any order. They are
    few for int8 on tiles, and many."""
    skip_unless_supported(kernel_set)
    parts = [[FORMS[form](48, 256) for _ in range(4)] for _ in range(2)]
    for part in parts:
        for i, weight in enumerate(part):
            weight.codes[:].view(torch.int8).copy_(weight.codes[:].view(torch.int8).roll(7 * i, 1))
    bias = random(4, 96, seed=5).to(dtype)
    backend = CpuBackend(kernel_set, activations)
    experts = backend.pack_quantized_experts(parts, dtype, bias)
    assert experts.num_bytes == 8 * parts[0][0].num_bytes + bias.nbytes
    weights = (beside(each) for each in zip(*parts, strict=True))
    singles = [
        backend.pack_quantized(weight, dtype, own)
        for weight, own in zip(weights, bias, strict=True)
    ]
    x = normal(20, 256).to(dtype)
    for starts in (torch.tensor([0, 1, 4, 4, 9]), torch.tensor([0, 1, 30, 30, 150])):
        count = int(starts[-1])
        tokens = torch.randint(0, 20, (count,), generator=torch.Generator().manual_seed(2))
        found = experts(x, starts, tokens)
        for i, single in enumerate(singles):
            rows = slice(starts[i], starts[i + 1])
            assert torch.equal(found[rows], single(x[tokens[rows]])), i
    assert experts(x, starts * 0, tokens[:0]).shape == (0, 96)


def test_fused_rounds_once() -> None:
    """Where float64 alone would round twice: a tie in float32 that only the last bit decides."""
    one, tiny = torch.tensor([1.0]), torch.tensor([2.0**-60])
    half_step = torch.tensor([2.0**-24])
    assert fused(half_step, one, one).item() == 1.0
    found = fused(tiny + 0, one, torch.tensor([1.0 + 2.0**-23]))
    assert found.item() == 1.0 + 2.0**-23
    a = torch.tensor([1.0 + 2.0**-12])
    exact = (1 + 2.0**-11) + 2.0**-24  # of a * a; a tie between two float32
    for c, direction in ((2.0**-70, 1), (-(2.0**-70), -1)):
        result = fused(a, a, torch.tensor([c])).item()
        assert (result - exact) * direction > 0
