"""Weights that stay in few bits on a GPU are the numbers that they mean, in every product."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.gpu.quantized import linear as packed_linear
from pagedrun.kernels.gpu.quantized.code_tensors import CodeTensors
from pagedrun.kernels.gpu.quantized.linear import QuantizedLinear
from pagedrun.kernels.gpu.quantized.products import EXPAND_ROWS, expand, quantized_tile
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight
from pagedrun.kernels.reference.linear import PackedLinear as PlainLinear
from tests.kernels.conftest import INTERPRETS
from tests.kernels.gpu.packed_inputs import BF16, FP16, inputs, moved
from tests.support.every_pair import every_pair, long_except
from tests.support.packed_forms import FORMS, GPU_FORMS, awq, codes, halves, mxfp4, q4_0, random

ROW_COUNTS = [1, 2, 15, 16, 17, 33, 64, 65, 70]  # around the heights of tiles
Compare = Callable[[Tensor, Tensor], None]


@every_pair(in_turn="dtype", form=[*GPU_FORMS], dtype=[BF16, FP16])
def test_every_weight_is_the_number_that_the_reference_makes(
    form: str, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    weight = GPU_FORMS[form](70, 256)
    held = CodeTensors.of([moved(weight, gpu_device)])
    found = expand(held, 0, 70, 256, dtype).cpu()
    assert torch.equal(found, Backend.dequantize(weight, dtype))
    assert torch.equal(expand(held, 33, 60, 256, dtype).cpu(), found[33:60])


@pytest.mark.parametrize("form", ["q4_0", "awq", "q8_0", "float8", "rows_of_four_bits", "mxfp4"])
@pytest.mark.parametrize("shape", [(1, 40), (33, 333)])
def test_sizes_that_fill_no_step(
    form: str, shape: tuple[int, int], gpu_device: torch.device, assert_close: Compare
) -> None:
    weight = GPU_FORMS[form](*shape)
    plain = Backend.dequantize(weight, BF16)
    layer = QuantizedLinear(moved(weight, gpu_device), row_invariant=True)
    held = CodeTensors.of([moved(weight, gpu_device)])
    assert torch.equal(expand(held, 0, *shape, BF16).cpu(), plain)
    x = inputs(5, shape[1])
    assert_close(layer(x.to(gpu_device)), x.double() @ plain.double().T)
    assert layer(x[:0].to(gpu_device)).shape == (0, shape[0])


@every_pair(in_turn="row_invariant", form=[*GPU_FORMS], row_invariant=[True, False])
def test_products_are_those_of_the_plain_weight(
    form: str, row_invariant: bool, gpu_device: torch.device, assert_close: Compare
) -> None:
    weight = GPU_FORMS[form](70, 256)
    plain = Backend.dequantize(weight, BF16)
    bias = random(70, seed=7).to(BF16) if row_invariant else None
    backend = GpuBackend()
    assert weight.can_be_held(backend.code_kernels, BF16)
    own_bias = None if bias is None else bias.to(gpu_device)
    layer = backend.pack_quantized(
        moved(weight, gpu_device), BF16, own_bias, row_invariant=row_invariant
    )
    assert (layer.in_features, layer.out_features) == (256, 70)
    assert layer.row_invariant == row_invariant
    assert layer.num_bytes == weight.num_bytes + (0 if bias is None else bias.nbytes)
    for num_rows in (3, 70):
        x = inputs(num_rows, 256)
        found = layer(x.to(gpu_device))
        assert found.dtype is BF16
        assert_close(found, PlainLinear(plain.double(), _wide(bias))(x.double()))


def _wide(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.double()


@pytest.mark.parametrize("form", long_except(["awq", "q6_k", "float8"], ["awq", "float8"]))
def test_rows_do_not_depend_on_their_number(form: str, gpu_device: torch.device) -> None:
    layer = QuantizedLinear(moved(FORMS[form](70, 256), gpu_device), row_invariant=True)
    x = inputs(ROW_COUNTS[-1], 256).to(gpu_device)
    full = layer(x)
    for num_rows in ROW_COUNTS:
        assert torch.equal(layer(x[:num_rows]), full[:num_rows]), num_rows
    assert torch.equal(layer(x[-3:]), full[-3:])
    wide = torch.cat([x, x], dim=1)[:, :256]  # rows that do not follow each other in memory
    assert torch.equal(layer(wide), full)


def test_inputs_cut_into_parts_give_one_sum(
    gpu_device: torch.device, assert_close: Compare
) -> None:
    """Uneven parts, of which the last has less, or nothing."""
    weight = awq(70, 2816)  # 11 steps
    tile = quantized_tile(5, CodeTensors.of([weight]), chip.chip_of(gpu_device))
    assert tile.num_parts > 1
    assert 11 % tile.num_parts
    x, bias = inputs(5, 2816), random(70, seed=7).to(BF16)
    layer = QuantizedLinear(moved(weight, gpu_device), bias.to(gpu_device))
    plain = Backend.dequantize(weight, BF16).double()
    found = layer(x.to(gpu_device))
    assert_close(found, x.double() @ plain.T + bias.double())
    assert torch.equal(layer(x.to(gpu_device)), found)


def test_many_rows_expand_the_matrix_in_pieces(
    gpu_device: torch.device, assert_close: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = q4_0(70, 256), random(70, seed=7).to(BF16)
    layer = QuantizedLinear(moved(weight, gpu_device), bias.to(gpu_device))
    x = inputs(EXPAND_ROWS, 256)
    expected = x.double() @ Backend.dequantize(weight, BF16).double().T + bias.double()
    assert_close(layer(x.to(gpu_device)), expected)
    monkeypatch.setattr(packed_linear, "_EXPANDED_AT_ONCE", 32 * 256)
    assert_close(layer(x.to(gpu_device)), expected)


@pytest.mark.parametrize("row_invariant", [True, False])
def test_nan_stays_in_its_row(row_invariant: bool, gpu_device: torch.device) -> None:
    x = torch.ones(37, 256, dtype=BF16, device=gpu_device)
    layer = QuantizedLinear(moved(q4_0(70, 256), gpu_device), row_invariant=row_invariant)
    expected = layer(x)
    x[36] = torch.nan  # the last row, which padding repeats
    found = layer(x)
    assert found[36].isnan().all()
    assert torch.equal(found[:36], expected[:36])


@pytest.mark.parametrize("form", GPU_FORMS)
def test_what_is_held_is_what_was_given(form: str) -> None:
    weight = GPU_FORMS[form](96, 1024)
    held = sum(each.nbytes for each in CodeTensors.of([weight]).tensors if each is not None)
    assert held == weight.num_bytes
    assert held < (0.6 if weight.form.held_bits == 8 else 0.5) * 2 * 96 * 1024


def test_what_no_kernel_is_for_is_held_in_plain_numbers(gpu_device: torch.device) -> None:
    backend, weight = GpuBackend(), q4_0(8, 240)
    scattered = PackedWeight(
        weight.codes, 4, weight.scales, 32, group_of=torch.arange(240).flip(0) // 32
    )
    uneven = PackedWeight(codes(-8, 8, 8, 240), 4, halves(8, 6), 40)
    for each in (scattered, uneven):
        assert not each.can_be_held(backend.code_kernels, BF16)
        layer = backend.pack_quantized(each, BF16)
        assert layer.num_bytes == 2 * 8 * 240
    assert not weight.can_be_held(backend.code_kernels, torch.float32)


def test_float16_refuses_scales_that_its_weights_might_not_fit() -> None:
    """Elsewhere such a matrix is unpacked, and each of its numbers looked at."""
    weight = PackedWeight(codes(-8, 8, 3, 32), 4, GroupScales(torch.full((3, 1), 65.0)), 32)
    assert weight.is_moderate(BF16)
    assert not weight.is_moderate(FP16)


def test_a_cpu_holds_no_floats_of_four_bits() -> None:
    form = mxfp4(32, 64).form
    assert CodeKernels.GPU.hold(form, 64, "bfloat16")
    assert not CodeKernels.TILES.hold(form, 64, "bfloat16")
    assert CodeKernels.TILES.hold(q4_0(32, 64).form, 64, "bfloat16")
    assert not CodeKernels.TILES.hold(q4_0(32, 64).form, 64, "float16")
    assert CodeKernels.TILES.of_experts.hold(q4_0(32, 64).form, 64, "bfloat16")


@pytest.mark.skipif(INTERPRETS, reason="the interpreter's products depend on the place in the tile")
@pytest.mark.gpu
def test_rows_do_not_depend_on_their_place() -> None:
    weight = moved(awq(1000, 1024), torch.device("cuda"))
    layer = QuantizedLinear(weight, row_invariant=True)
    x = inputs(300, 1024).cuda()
    full, shuffled = layer(x), torch.randperm(300, device="cuda")
    assert torch.equal(layer(x[shuffled]), full[shuffled])
