"""Exact products of quantized weights: the bits of the dequantized weight on tiles and in panels,
those of a simple twin in pairs, the same in every batch."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.quantized import code_arrays
from pagedrun.kernels.cpu.quantized.code_arrays import CodeArrays, Layout
from pagedrun.kernels.cpu.quantized.linear import QuantizedLinear
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import (
    DeferredCodes,
    GroupScales,
    PackedWeight,
    beside,
    joined_neighbors,
)
from tests.kernels.cpu.pair_chains import pair_chains
from tests.support.every_pair import every_pair, long_except
from tests.support.kernel_cases import (
    THREADS,
    assert_rows_keep_their_bytes,
    misaligned,
    skip_unless_supported,
    threads,
)
from tests.support.packed_forms import FORMS, USUAL_FORMS, codes, halves, random

# Around the heights of tiles, of pairs of them, of blocks, and of the rows that pass a chunk of
# weights.
Multiply = Callable[[Tensor], Tensor]
ROW_COUNTS = [1, 2, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 64, 70]
OUT = 70  # two panels and a part


SETS = [KernelSet.AMX, KernelSet.AVX512_BF16, KernelSet.PORTABLE]


@pytest.fixture
def kernel_set(request: pytest.FixtureRequest) -> KernelSet:
    chosen: KernelSet = request.param
    skip_unless_supported(chosen)
    return chosen


def twin(kernel_set: KernelSet, weight: PackedWeight, bias: Tensor | None = None) -> Multiply:
    """Return what a kernel set's products of a weight must be, to the last bit."""
    if kernel_set is not KernelSet.AVX512_BF16:
        return CpuBackend(kernel_set, Activations.EXACT).pack_linear(
            CpuBackend.dequantize(weight, torch.bfloat16), bias
        )
    return lambda x: pair_chains(x, weight, bias)


def cancelling(weight: Tensor, num_rows: int) -> Tensor:
    """Return inputs of which the order of summation is most of what is left in the first output."""
    x = torch.randn(num_rows, weight.shape[1], generator=torch.Generator().manual_seed(8))
    half = weight.shape[1] // 2
    first = weight[0].double()
    x[:, half : 2 * half] = (-x[:, :half].double() * first[:half] / first[half : 2 * half]).float()
    return x.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4).bfloat16()


@pytest.mark.parametrize("kernel_set", SETS, indirect=True)
@every_pair(
    form=long_except(FORMS, USUAL_FORMS),
    columns=[256, 768, 1280],
    has_bias=[True, False],
    num_threads=THREADS,
    cancel=[0, 1],
)
def test_the_bits_of_a_twin(
    kernel_set: KernelSet, form: str, columns: int, has_bias: bool, num_threads: int, cancel: int
) -> None:
    """768 columns are whole chunks of steps, 1,280 not those of tiles."""
    weight = FORMS[form](OUT, columns)
    plain = CpuBackend.dequantize(weight, torch.bfloat16)
    bias = random(OUT, seed=7).bfloat16() if has_bias else None
    backend = CpuBackend(kernel_set, Activations.EXACT)
    assert weight.can_be_held(backend.code_kernels, torch.bfloat16)
    x = torch.randn(ROW_COUNTS[-1], columns, generator=torch.Generator().manual_seed(8)).bfloat16()
    if cancel:
        x = cancelling(plain, len(x))
    with threads(num_threads):
        layer = backend.pack_quantized(weight, torch.bfloat16, bias)
        expected = twin(kernel_set, weight, bias)(x)
        assert expected.isfinite().all()
        assert (expected != 0).any()
        assert torch.equal(layer(x), expected)
        assert_rows_keep_their_bytes(layer, x, expected, ROW_COUNTS)
        assert torch.equal(layer(misaligned(x)), expected)
        assert torch.equal(layer(x[::3]), expected[::3])


@pytest.mark.parametrize("kernel_set", SETS, indirect=True)
@pytest.mark.parametrize(
    "form", long_except(["q4_0", "awq", "q8_0", "float8", "rows_of_four_bits"], USUAL_FORMS)
)
@pytest.mark.parametrize("shape", [(1, 40), (33, 333), (1000, 576)])
def test_odd_sizes(kernel_set: KernelSet, form: str, shape: tuple[int, int]) -> None:
    weight = FORMS[form](*shape)
    layer = CpuBackend(kernel_set, Activations.EXACT).pack_quantized(weight, torch.bfloat16)
    for num_rows in (1, 7, 40, 514, 600):  # over 512: more than pass a chunk at once
        x = random(num_rows, shape[1], seed=num_rows).bfloat16() - 0.5
        assert torch.equal(layer(x), twin(kernel_set, weight)(x))
    assert layer(x[:0]).shape == (0, shape[0])


@pytest.mark.parametrize("form", FORMS)
def test_no_further_from_what_is_meant_than_rounded_weights(form: str) -> None:
    """Scales come to sums, so no weight is rounded."""
    skip_unless_supported(KernelSet.AVX512_BF16)
    weight = FORMS[form](96, 1024)
    meant = Backend.dequantize(weight, torch.float32).double()
    x = torch.randn(32, 1024, generator=torch.Generator().manual_seed(3)).bfloat16()
    exact = x.double() @ meant.T
    rounded = (x.double() @ meant.bfloat16().double().T).bfloat16()
    found = QuantizedLinear(weight, kernel_set=KernelSet.AVX512_BF16)(x)
    errors = [(each.double() - exact).pow(2).mean() for each in (found, rounded)]
    assert 0 < errors[0] <= 1.01 * errors[1]


@pytest.mark.parametrize("columns", [32, 160])
def test_codes_of_minus_128(columns: int) -> None:
    """They have no sign and magnitude of eight bits."""
    skip_unless_supported(KernelSet.AVX512_BF16)
    weight = FORMS["q8_0"](40, columns)
    x = torch.randn(9, columns, generator=torch.Generator().manual_seed(3)).bfloat16()
    for least in (-128, -127):
        weight.codes[:].clamp_(least)
        weight.codes[:][0, 0] = least
        layer = QuantizedLinear(weight, kernel_set=KernelSet.AVX512_BF16)
        assert torch.equal(layer(x), pair_chains(x, weight))


@pytest.mark.parametrize("kernel_set", SETS, indirect=True)
@pytest.mark.parametrize("form", ["q4_0", "q4_k", "q8_0"])
def test_nan_stays_in_its_row(kernel_set: KernelSet, form: str) -> None:
    x = torch.ones(37, 256, dtype=torch.bfloat16)
    layer = QuantizedLinear(FORMS[form](OUT, 256), kernel_set=kernel_set)
    expected = layer(x)
    x[36] = torch.nan
    found = layer(x)
    assert found[36].isnan().all()
    assert torch.equal(found[:36], expected[:36])


@pytest.mark.parametrize("kernel_set", SETS, indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_held_is_what_was_given_and_little_more(kernel_set: KernelSet, form: str) -> None:
    weight = FORMS[form](96, 1024)
    layer = QuantizedLinear(weight, kernel_set=kernel_set)
    held = sum(each.nbytes for each in layer.arrays)
    assert layer.num_bytes <= held <= 1.04 * layer.num_bytes
    assert held < (0.6 if weight.num_bits == 8 else 0.5) * 2 * 96 * 1024


def test_parts_side_by_side() -> None:
    """Those that are alike become one matrix, scales of a whole one too."""
    one, other = FORMS["q4_k"](40, 256), FORMS["q4_k"](24, 256)
    wide = FORMS["q6_k"](8, 256)
    joined = list(joined_neighbors([one, other, wide, wide, one]))
    assert [each.out_features for each in joined] == [64, 16, 40]
    expected = [Backend.dequantize(each, torch.float32) for each in (one, other)]
    assert torch.equal(Backend.dequantize(joined[0], torch.float32), torch.cat(expected))
    scaled = PackedWeight(codes(-8, 8, 6, 32), 8, GroupScales(torch.tensor([[0.5]])), 32, 6)
    rows = PackedWeight(codes(-8, 8, 2, 32), 8, GroupScales(torch.tensor([[2.0], [3.0]])), 32)
    [both] = joined_neighbors([scaled, rows])
    expected = [Backend.dequantize(each, torch.float32) for each in (scaled, rows)]
    assert torch.equal(Backend.dequantize(both, torch.float32), torch.cat(expected))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("form", ["awq", "q5_k", "q6_k", "q8_0", "float8"])
def test_codes_are_unpacked_a_few_panels_at_a_time(
    form: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of all at once. A byte for each code would be most of a file's size once more."""
    parts = [FORMS[form](out, 256).by_row() for out in (70, 10, 64)]
    whole = replace(beside(parts), codes=torch.cat([each.codes[:] for each in parts]))
    expected = CodeArrays(whole, layout).arrays
    unpacked: list[tuple[int, int]] = []

    def deferred(codes: Tensor) -> DeferredCodes:
        def unpack(start: int, end: int) -> Tensor:
            unpacked.append((start, end))
            return codes[start:end]

        return DeferredCodes(codes.shape, codes.dtype, unpack)

    monkeypatch.setattr(code_arrays, "_CODES_AT_ONCE", 1)
    of_parts = beside([replace(each, codes=deferred(each.codes[:])) for each in parts])
    assert unpacked == []
    found = CodeArrays(of_parts, layout).arrays
    assert unpacked == [(0, 32), (32, 64), (64, 70), (0, 10), (0, 16), (16, 48), (48, 64)]
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("kernel_set", SETS, indirect=True)
def test_what_no_kernel_is_for_is_held_in_plain_numbers(kernel_set: KernelSet) -> None:
    weight = FORMS["q4_0"](OUT, 256)
    scattered = PackedWeight(
        weight.codes, 4, weight.scales, 32, group_of=torch.arange(256).flip(0) // 32
    )
    uneven = PackedWeight(weight.codes, 4, halves(OUT, 7), 40)
    for each in (scattered, uneven):
        backend = CpuBackend(kernel_set, Activations.EXACT)
        assert not each.can_be_held(backend.code_kernels, torch.bfloat16)
        plain = CpuBackend.dequantize(each, torch.bfloat16)
        x = random(3, 256, seed=1).bfloat16()
        layer = backend.pack_quantized(each, torch.bfloat16)
        assert torch.equal(layer(x), backend.pack_linear(plain)(x))
        assert layer.num_bytes == plain.nbytes
    for other in KernelSet.supported():
        kernels = CpuBackend(other).code_kernels
        assert weight.can_be_held(kernels, torch.float32)
        assert not weight.can_be_held(kernels, torch.float16)
