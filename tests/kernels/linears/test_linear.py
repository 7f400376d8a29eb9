from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.linears.linear import PackedLinear as CpuLinear
from pagedrun.kernels.gpu import chip, linear
from pagedrun.kernels.gpu.linear import PackedLinear as GpuLinear
from pagedrun.kernels.reference.linear import PackedLinear as PlainLinear

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 3, 63])
@pytest.mark.parametrize(("num_in", "num_out"), [(16, 48), (333, 1000)])
def test_matches_reference(
    num_in: int,
    num_out: int,
    num_rows: int,
    has_bias: bool,
    dtype: torch.dtype,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(num_out, num_in) / num_in**0.5).to(dtype)
    bias = torch.randn(num_out).to(dtype) if has_bias else None
    x = torch.randn(num_rows, num_in).to(dtype)
    layer = CpuLinear(weight, bias)
    wide_bias = None if bias is None else bias.double()
    out = layer(x)
    assert out.dtype is dtype
    assert out.is_contiguous()
    assert (layer.in_features, layer.out_features) == (num_in, num_out)
    assert_close(out, PlainLinear(weight.double(), wide_bias)(x.double()))


@pytest.mark.parametrize("has_onednn", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_in", "num_out"), [(64, 192), (333, 1000), (1024, 512)])
def test_linear_rows_do_not_depend_on_their_number(
    num_in: int,
    num_out: int,
    dtype: torch.dtype,
    has_onednn: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_onednn:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    torch.manual_seed(0)
    weight, x = torch.randn(num_out, num_in).to(dtype), torch.randn(256, num_in).to(dtype)
    layer = CpuLinear(weight)
    full = layer(x)
    for num_rows in (1, 2, 3, 4, 7, 8, 12, 15, 16, 17, 31, 64, 100):
        assert torch.equal(layer(x[:num_rows]), full[:num_rows]), num_rows
        assert torch.equal(layer(x[-num_rows:]), full[-num_rows:]), num_rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_in", "num_out"), [(2048, 1024), (3072, 1024), (4096, 2048)])
def test_linear_row_alone_equals_row_in_batch_at_model_shapes(
    num_in: int, num_out: int, dtype: torch.dtype
) -> None:
    """oneDNN's one-row kernel sums in another order; one row in four showed it, not each."""
    torch.manual_seed(0)
    weight = (torch.randn(num_out, num_in) / num_in**0.5).to(dtype)
    x = torch.randn(100, num_in).to(dtype)
    layer = CpuLinear(weight)
    full = layer(x)
    for num_rows in (1, 2, 3, 5):
        for start in range(0, len(x) - num_rows, 3):
            rows = slice(start, start + num_rows)
            assert torch.equal(layer(x[rows]), full[rows]), (num_rows, start)


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


@pytest.mark.parametrize("num_rows", [1, 16, 45])
def test_gpu_programs_that_go_on_to_other_tiles_give_the_same_bytes(
    num_rows: int, gpu_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three programs for up to 21 tiles, groups of rows that do not come out even among them."""
    torch.manual_seed(0)
    weight = (torch.randn(99, 70) / 8).to(gpu_device, torch.bfloat16)
    bias = torch.randn(99).to(gpu_device, torch.bfloat16)
    x = torch.randn(num_rows, 70).to(gpu_device, torch.bfloat16)
    outs = []
    for is_persistent in (False, True):
        tile = linear.MatmulTile(16, 16, 16, 4, 2, is_persistent)
        on = replace(chip.chip_of(gpu_device), num_processors=3)
        with monkeypatch.context() as patch:
            patch.setattr(linear, "tile_of", lambda *_, tile=tile: tile)
            patch.setattr(chip, "chip_of", lambda _, on=on: on)
            outs.append(GpuLinear(weight, bias, row_invariant=True)(x))
    assert torch.equal(*outs)


def test_gpu_wide_weights_take_the_persistent_product() -> None:
    """On chips whose warp groups multiply: others have not the registers."""
    processors = 132
    wide = 256 * processors
    on = chip.Chip("cuda", 90, processors, 227 << 10)
    tile = linear.tile_of(wide, torch.bfloat16, on)
    assert (tile.rows, tile.columns, tile.is_persistent) == (128, 256, True)
    assert not linear.tile_of(wide - 1, torch.bfloat16, on).is_persistent
    for other in (chip.Chip("cuda", 86, processors, 99 << 10), replace(on, arch=100)):
        assert not linear.tile_of(wide, torch.bfloat16, other).is_persistent


def test_gpu_nan_stays_in_its_row(gpu_device: torch.device) -> None:
    x = torch.ones(5, 48, device=gpu_device)
    x[4] = torch.nan  # the last row, which the padding of the tile repeats
    out = GpuLinear(torch.ones(70, 48, device=gpu_device), row_invariant=True)(x)
    assert out[4].isnan().all()
    assert (out[:4] == 48).all()
