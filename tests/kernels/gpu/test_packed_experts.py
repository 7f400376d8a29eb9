"""Experts that stay in few bits on a GPU: values, each row's own bytes, and no rows at all."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.gpu.quantized.linear import QuantizedGroupedLinear
from pagedrun.kernels.op_values import ExpertRows
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.kernels.reference.experts import PackedGroupedLinear as PlainGroupedLinear
from tests.kernels.gpu.packed_inputs import inputs, moved
from tests.support.every_pair import long_except
from tests.support.packed_forms import GPU_FORMS

NUM_EXPERTS, OUT, IN = 5, 40, 256
COUNTS = [1, 70, 5, 0, 16]  # expert 3 has no rows, one has more than a tile


def experts(form: str, device: torch.device) -> list[list[PackedWeight]]:
    """Return two parts, with weights of its own for each expert."""
    whole = GPU_FORMS[form](2 * NUM_EXPERTS * OUT, IN)
    each = [whole.between(start, start + OUT) for start in range(0, 2 * NUM_EXPERTS * OUT, OUT)]
    return [[moved(one, device) for one in each[part::2]] for part in range(2)]


def starts_of(counts: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], device=device)


@pytest.mark.parametrize(
    "form",
    long_except(["mxfp4", "awq", "q4_k", "q5_k", "q6_k", "float8"], ["mxfp4", "awq", "float8"]),
)
def test_each_row_passes_its_own_expert(
    form: str, gpu_device: torch.device, assert_close: Callable[[Tensor, Tensor], None]
) -> None:
    weights = experts(form, gpu_device)
    bias = torch.randn(NUM_EXPERTS, 2 * OUT).bfloat16() if form == "mxfp4" else None
    own_bias = None if bias is None else bias.to(gpu_device)
    layer = GpuBackend().pack_quantized_experts(weights, torch.bfloat16, own_bias)
    assert isinstance(layer, QuantizedGroupedLinear)
    assert (layer.num_experts, layer.in_features, layer.out_features) == (NUM_EXPERTS, IN, 2 * OUT)
    held = sum(each.num_bytes for part in weights for each in part)
    assert layer.num_bytes == held + (0 if bias is None else bias.nbytes)
    plain = [[Backend.dequantize(each, torch.bfloat16) for each in part] for part in weights]
    wide = PlainGroupedLinear(
        [[each.cpu().double() for each in part] for part in plain],
        None if bias is None else bias.double(),
    )
    x = inputs(23, IN)
    tokens = torch.randint(23, (sum(COUNTS),), generator=torch.Generator().manual_seed(2))
    starts = starts_of(COUNTS, gpu_device)
    found = layer(x.to(gpu_device), starts, tokens.to(gpu_device))
    assert_close(found, wide(x.double(), starts.cpu(), tokens))
    assert torch.equal(layer(x[tokens].to(gpu_device), starts), found)


def test_a_row_does_not_depend_on_who_else_chose_its_expert(gpu_device: torch.device) -> None:
    layer = QuantizedGroupedLinear(experts("mxfp4", gpu_device))
    x = inputs(71, IN).to(gpu_device)
    alone = layer(x[:1], starts_of([0, 0, 1, 0, 0], gpu_device))
    for before, beside in ((0, 7), (3, 70)):
        tokens = torch.tensor([*range(1, before + 1), 0, *range(1, beside + 1)], device=gpu_device)
        found = layer(x, starts_of([0, before, beside + 1, 0, 0], gpu_device), tokens)
        assert torch.equal(found[before], alone[0])


def test_no_rows_give_no_rows(gpu_device: torch.device) -> None:
    layer = QuantizedGroupedLinear(experts("mxfp4", gpu_device))
    rows = ExpertRows.of(torch.empty(0, 1, dtype=torch.int64, device=gpu_device), NUM_EXPERTS)
    x = torch.empty(0, IN, dtype=torch.bfloat16, device=gpu_device)
    assert layer(x, rows.starts, rows.tokens).shape == (0, 2 * OUT)


def test_unlike_dtypes_are_unpacked(gpu_device: torch.device) -> None:
    layer = GpuBackend().pack_quantized_experts(experts("awq", gpu_device), torch.float32)
    assert layer.num_bytes == 4 * NUM_EXPERTS * 2 * OUT * IN
