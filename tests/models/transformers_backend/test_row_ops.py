"""What a library's code asks torch for: rows and numbers that do not depend on what lies beside."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.models.transformers_backend.hooks import RowOps

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "method": Tensor.sigmoid,
    "module": nn.SiLU(inplace=True),
}


class Router(nn.Module):
    """Multiplies by a weight without a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 48))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


def row_ops(model: nn.Module) -> RowOps:
    return RowOps(model, choose_device("cpu").kernels, row_invariant=True)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_has_its_activation_wherever_it_lies(name: str, dtype: torch.dtype) -> None:
    activate = ACTIVATIONS[name]
    x = (3 * torch.randn(4100, generator=torch.Generator().manual_seed(0))).to(dtype)
    with row_ops(nn.Module()):
        whole = activate(x.clone())
        for width in (1, 7, 17, 33):
            assert torch.equal(
                torch.cat([activate(each.clone()) for each in torch.split(x, width)]), whole
            )
    close = 1e-6 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(whole, activate(x.clone()), rtol=close, atol=close)


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(48, 8), lambda: nn.Linear(48, 8, bias=False), lambda: Conv1D(8, 48), Router],
    ids=["linear", "without a bias", "on its side", "router"],
)
@torch.inference_mode()
def test_a_row_has_its_products_whoever_is_beside(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    layer = make()
    for parameter in layer.parameters():
        parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(2, 37, 48)
    expected = layer(x)
    ops = row_ops(nn.Sequential(layer))
    assert [(each.in_features, each.out_features) for each in ops.products] == [(48, 8)]
    with ops:
        together = layer(x)
        for row in (0, 5, 36):
            assert torch.equal(layer(x[:, row]), together[:, row])
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)


def test_code_that_multiplies_in_another_way_gets_no_numbers() -> None:
    layer = nn.Linear(48, 8)
    ops = row_ops(layer)
    with ops:
        assert torch.matmul(torch.randn(3, 48), layer.weight.T).isnan().all()
    assert ops.released == {layer.weight, layer.bias}
    assert layer.weight.untyped_storage().nbytes() == 4
