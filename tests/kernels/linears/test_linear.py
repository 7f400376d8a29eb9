"""Linear layers of a GPU, and of a CPU without oneDNN; see also `cpu/test_row_invariance.py`."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.linears import linear as cpu_linear
from pagedrun.kernels.cpu.linears.linear import FmaLinear
from pagedrun.kernels.cpu.linears.linear import PackedLinear as CpuLinear
from pagedrun.kernels.cpu.linears.onednn_linear import CancellingOperands
from pagedrun.kernels.cpu.linears.panel_product import rows_of_tile
from pagedrun.kernels.gpu import chip, linear
from pagedrun.kernels.gpu.linear import PackedLinear as GpuLinear
from pagedrun.kernels.gpu.matrix_product import MatmulTile
from pagedrun.kernels.reference.linear import PackedLinear as PlainLinear
from tests.support.kernel_cases import assert_rows_keep_their_bytes

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_their_bytes_without_onednn(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    operands = CancellingOperands.make(1000, 333, 100, dtype, seed=5)
    layer = CpuLinear(operands.weight)
    assert (layer.in_features, layer.out_features) == (333, 1000)
    full = layer(operands.x)
    assert (full != 0).any(), "nothing is left to tell orders apart by"
    assert_rows_keep_their_bytes(layer, operands.x, full, [1, 2, 3, 4, 7, 16, 17, 31, 64])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_their_bytes_whether_threads_share_rows_or_columns(
    dtype: torch.dtype, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around the number of rows from which on each thread has its own, with ends of all kinds."""
    monkeypatch.setattr(cpu_linear, "num_threads", lambda: num_threads)
    operands = CancellingOperands.make(300, 133, 1201, dtype, seed=5)
    layer = FmaLinear(operands.weight, torch.randn(300).to(dtype))
    by_rows = {
        num_rows: layer(operands.x[:num_rows])
        for num_rows in (*(192 * num_threads + more for more in (-1, 0, 1, 2, 3, 5)), 1200, 1201)
        if rows_of_tile(num_rows, num_threads)
    }
    assert len(by_rows) == 7
    monkeypatch.setattr(cpu_linear, "rows_of_tile", lambda *_: 0)
    by_columns = layer(operands.x)
    for num_rows, found in by_rows.items():
        assert torch.equal(found, by_columns[:num_rows]), num_rows


@pytest.mark.parametrize("num_rows", [25, 26, 28, 29, 36, 37, 48])
def test_the_last_tile_may_have_any_number_of_rows(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many threads a single row may be left, whose block has four."""
    operands = CancellingOperands.make(70, 33, num_rows, torch.float32, seed=5)
    layer = FmaLinear(operands.weight, None)
    expected = layer(operands.x)
    assert (expected != 0).any()
    monkeypatch.setattr(cpu_linear, "rows_of_tile", lambda *_: 24)
    assert torch.equal(layer(operands.x), expected)


def test_packing_does_not_keep_the_weight() -> None:
    weight = torch.randn(64, 64)
    layer = CpuLinear(weight)
    x = torch.ones(1, 64)
    before = layer(x)
    weight.zero_()
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("row_invariant", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("num_rows", "num_in", "num_out"), [(1, 16, 48), (3, 333, 200), (130, 64, 130)]
)
def test_gpu_matches_reference(
    num_rows: int,
    num_in: int,
    num_out: int,
    has_bias: bool,
    dtype: torch.dtype,
    row_invariant: bool,
    gpu_device: torch.device,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(num_out, num_in) / num_in**0.5).to(dtype)
    bias = torch.randn(num_out).to(dtype) if has_bias else None
    x = torch.randn(num_rows, num_in).to(dtype)
    wide_bias = None if bias is None else bias.double()
    expected = PlainLinear(weight.double(), wide_bias)(x.double())
    bias = None if bias is None else bias.to(gpu_device)
    layer = GpuLinear(weight.to(gpu_device), bias, row_invariant=row_invariant)
    out = layer(x.to(gpu_device))
    assert out.dtype is dtype
    assert (layer.in_features, layer.out_features) == (num_in, num_out)
    assert_close(out, expected)


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize(("num_in", "num_out"), [(64, 192), (333, 100)])
def test_gpu_rows_do_not_depend_on_their_number(
    num_in: int, num_out: int, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(num_out, num_in) / num_in**0.5).to(gpu_device, dtype)
    x = torch.randn(130, num_in).to(gpu_device, dtype)
    layer = GpuLinear(weight, row_invariant=True)
    full = layer(x)
    for num_rows in (1, 3, 16, 64, 129):
        assert torch.equal(layer(x[:num_rows]), full[:num_rows]), num_rows


@pytest.mark.gpu  # the interpreter's products depend on the place in the tile
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_gpu_rows_do_not_depend_on_their_place(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(1000, 1024, device="cuda").to(dtype)
    x = torch.randn(300, 1024, device="cuda").to(dtype)
    layer = GpuLinear(weight, row_invariant=True)
    full = layer(x)
    shuffled = torch.randperm(300, device="cuda")
    assert torch.equal(layer(x[shuffled]), full[shuffled])
    assert torch.equal(layer(x[-1:]), full[-1:])


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("num_rows", [1, 16, 45])
def test_gpu_programs_that_go_on_to_other_tiles_give_the_same_bytes(
    num_rows: int, gpu_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three programs for up to 21 tiles, groups of rows that do not come out even among them."""
    operands = CancellingOperands.make(99, 70, num_rows, torch.bfloat16, seed=5)
    weight, x = operands.weight.to(gpu_device), operands.x.to(gpu_device)
    bias = (torch.randn(99) * 2.0**-17).to(gpu_device, torch.bfloat16)  # hides no rounding noise
    outs = []
    for is_persistent in (False, True):
        tile = MatmulTile(16, 16, 16, 4, 2, is_persistent)
        on = replace(chip.chip_of(gpu_device), num_processors=3)
        with monkeypatch.context() as patch:
            patch.setattr(linear, "linear_tile", lambda *_, tile=tile: tile)
            patch.setattr(chip, "chip_of", lambda _, on=on: on)
            outs.append(GpuLinear(weight, bias, row_invariant=True)(x))
    assert torch.equal(*outs)


def test_gpu_wide_weights_take_the_persistent_product() -> None:
    """On chips whose warp groups multiply: others have not the registers."""
    processors = 132
    wide = 256 * processors
    on = chip.Chip("cuda", 90, processors, 227 << 10)
    tile = linear.linear_tile(wide, torch.bfloat16, on)
    assert (tile.rows, tile.columns, tile.is_persistent) == (128, 256, True)
    assert not linear.linear_tile(wide - 1, torch.bfloat16, on).is_persistent
    for other in (chip.Chip("cuda", 86, processors, 99 << 10), replace(on, arch=100)):
        assert not linear.linear_tile(wide, torch.bfloat16, other).is_persistent


def test_gpu_nan_stays_in_its_row(gpu_device: torch.device) -> None:
    x = torch.ones(5, 48, device=gpu_device)
    x[4] = torch.nan  # the last row, which the padding of the tile repeats
    out = GpuLinear(torch.ones(70, 48, device=gpu_device), row_invariant=True)(x)
    assert out[4].isnan().all()
    assert (out[:4] == 48).all()
