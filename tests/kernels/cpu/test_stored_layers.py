"""Packed layers taken apart and put together over other memory."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.onednn_linear import OneDnnLinear, RowHeights
from pagedrun.kernels.cpu.simd.arrays import aligned_empty
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.op_values import ExpertRows
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import all_alike
from pagedrun.kernels.stored_layers import ArraySpec, StoredLayer, put_together, take_apart
from tests.support.every_pair import long_except
from tests.support.kernel_cases import PRODUCTS
from tests.support.packed_forms import FORMS, USUAL_FORMS

SIZES = 72, 256  # outputs, which fill no panel, and inputs
ROWS = [1, 5, 33]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def moved(layer: Any) -> Any:
    """Return the layer over memory that is written after it is put together."""
    stored, arrays = take_apart(layer, CpuBackend.LAYER_PARTS)
    description, specs = json.loads(json.dumps(stored))
    read = StoredLayer(description, tuple(ArraySpec(name, tuple(shape)) for name, shape in specs))
    memory = [aligned_empty((each.size,), np.uint8) for each in arrays]
    for each in memory:
        each[:] = 0
    there, refilled = put_together(
        read, list(map(torch.from_numpy, memory)), CpuBackend.LAYER_PARTS
    )
    for target, source in zip(memory, arrays, strict=True):
        target[:] = source
    for part in refilled:
        part.refill()
    return there


def assert_same(layer: Any, dtype: torch.dtype) -> None:
    there = moved(layer)
    assert type(there) is type(layer)
    assert (there.in_features, there.out_features) == (layer.in_features, layer.out_features)
    assert (there.num_bytes, there.row_invariant) == (layer.num_bytes, layer.row_invariant)
    for count in ROWS:
        x = numbers(count, layer.in_features, dtype=dtype, seed=count)
        assert torch.equal(layer(x), there(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel_set", KernelSet.supported())
def test_a_plain_layer_has_the_same_bytes(kernel_set: KernelSet, dtype: torch.dtype) -> None:
    kernels = CpuBackend(kernel_set)
    weight, bias = numbers(*SIZES, dtype=dtype), numbers(SIZES[0], dtype=dtype, seed=1)
    assert_same(kernels.pack_linear(weight, bias), dtype)
    assert_same(kernels.pack_linear(weight), dtype)


@pytest.mark.parametrize("kernel_set", KernelSet.supported())
def test_an_int8_layer_has_the_same_bytes(kernel_set: KernelSet) -> None:
    kernels = CpuBackend(kernel_set)
    codes, scales = kernels.quantize_rows(numbers(*SIZES, dtype=torch.float32))
    bias = numbers(SIZES[0], dtype=torch.float32, seed=1)
    assert_same(kernels.pack_int8(codes, scales, bias), torch.float32)


@pytest.mark.parametrize("form", long_except(FORMS, USUAL_FORMS))
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("kernel_set", KernelSet.supported())
def test_a_quantized_layer_has_the_same_bytes(
    kernel_set: KernelSet, product: tuple[Activations, torch.dtype], form: str
) -> None:
    activations, dtype = product
    kernels = CpuBackend(kernel_set, activations)
    assert_same(kernels.pack_quantized(FORMS[form](*SIZES), dtype), dtype)


def assert_same_experts(layer: Any, num_experts: int, dtype: torch.dtype) -> None:
    there = moved(layer)
    x = numbers(40, layer.in_features, dtype=dtype, seed=2)
    chosen = torch.arange(80).view(40, 2) % num_experts
    rows = ExpertRows.of(chosen, num_experts)
    assert torch.equal(layer(x, rows.starts, rows.tokens), there(x, rows.starts, rows.tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel_set", KernelSet.supported())
def test_plain_experts_have_the_same_bytes(kernel_set: KernelSet, dtype: torch.dtype) -> None:
    parts = [
        [numbers(*SIZES, dtype=dtype, seed=10 * part + e) for e in range(3)] for part in (0, 1)
    ]
    bias = numbers(3, 2 * SIZES[0], dtype=dtype)
    assert_same_experts(CpuBackend(kernel_set).pack_grouped_linear(parts, bias), 3, dtype)


@pytest.mark.parametrize("form", long_except(["q4_0", "q4_1", "q6_k", "q8_0"], USUAL_FORMS))
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("kernel_set", KernelSet.supported())
def test_quantized_experts_have_the_same_bytes(
    kernel_set: KernelSet, product: tuple[Activations, torch.dtype], form: str
) -> None:
    activations, dtype = product
    parts = [[FORMS[form](*SIZES) for _ in range(3)]]
    assert all_alike(parts[0])
    kernels = CpuBackend(kernel_set, activations)
    assert_same_experts(kernels.pack_quantized_experts(parts, dtype), 3, dtype)


def test_a_layer_in_the_layout_of_onednn_is_refilled() -> None:
    # In float32, which it packs on any processor.
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("torch is built without oneDNN")
    weight = numbers(*SIZES, dtype=torch.float32)
    layer = OneDnnLinear(weight, None, RowHeights((16, 32), all_agree=False))
    there, x = moved(layer), numbers(20, SIZES[1], dtype=torch.float32)
    assert torch.equal(there(x), layer(x))
    assert there(x).abs().max() > 0


def test_layers_that_take_turns_on_a_copy_are_refilled_once_another_was() -> None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("torch is built without oneDNN")
    x, layers, plain = numbers(20, SIZES[1], dtype=torch.float32), [], []
    for seed, shape in enumerate((SIZES, SIZES, (SIZES[0] + 1, SIZES[1]))):
        weight = numbers(*shape, dtype=torch.float32, seed=seed)
        plain.append(OneDnnLinear(weight, None, RowHeights((16, 32), all_agree=False)))
        layers.append(moved(plain[-1]))
    first, second, other = layers
    assert first.is_filled
    assert second.share(first)
    assert not other.share(first)
    assert not second.is_filled
    second.refill()
    assert (first.is_filled, second.is_filled, other.is_filled) == (False, True, True)
    assert torch.equal(second(x), plain[1](x))
    first.refill()
    assert not second.is_filled
    for layer, expected in ((first, plain[0]), (other, plain[2])):
        assert torch.equal(layer(x), expected(x))


def test_a_layer_that_shares_a_copy_has_no_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("torch is built without oneDNN")
    weight = numbers(*SIZES, dtype=torch.float32)
    state = OneDnnLinear(weight, None, RowHeights((16, 32), all_agree=False)).__getstate__()
    sizes: list[torch.Size] = []
    pack = onednn_linear.pack

    def counted(weight: Tensor) -> Tensor:
        sizes.append(weight.shape)
        return pack(weight)

    monkeypatch.setattr(onednn_linear, "pack", counted)
    layers = [OneDnnLinear.__new__(OneDnnLinear) for _ in range(3)]
    for layer in layers:
        layer.__setstate__(state)
        layer.share(layers[0])
    for layer in layers:
        layer.refill()
    assert sizes == [weight.shape]


def test_an_array_used_twice_is_stored_once() -> None:
    layer = CpuBackend().pack_quantized(FORMS["q4_0"](*SIZES), torch.float32)
    _, arrays = take_apart(layer, CpuBackend.LAYER_PARTS)
    assert sum(each.size for each in arrays) < 1.2 * layer.num_bytes + 4096


@pytest.mark.parametrize(
    "broken",
    [
        lambda description: {"is": "Popen", "state": {}},
        lambda description: {"is": "FmaLinear"},
        lambda description: {"array": 99},
    ],
)
def test_a_description_of_anything_else_is_refused(broken: Callable[[Any], Any]) -> None:
    layer = CpuBackend(KernelSet.PORTABLE).pack_linear(numbers(*SIZES, dtype=torch.float32))
    stored, arrays = take_apart(layer, CpuBackend.LAYER_PARTS)
    changed = stored._replace(description=broken(stored.description))
    with pytest.raises(ValueError, match="no layer is described like this"):
        put_together(changed, list(map(torch.from_numpy, arrays)), CpuBackend.LAYER_PARTS)


def test_what_is_not_a_layer_cannot_be_taken_apart() -> None:
    with pytest.raises(TypeError, match="cannot have a CpuBackend"):
        take_apart({"layer": CpuBackend()}, CpuBackend.LAYER_PARTS)
