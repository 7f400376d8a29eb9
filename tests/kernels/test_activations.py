"""Gated activations of every backend, and the gate after attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu import activations
from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin

GATED: list[tuple[str, tuple[float, ...]]] = [
    ("silu_mul", ()),
    ("gelu_tanh_mul", ()),
    ("gelu_mul", ()),
    ("clipped_swiglu", (3.0, 1.702)),  # a limit that random gates and ups go beyond
]


@pytest.mark.parametrize(
    ("name", "numbers"), [*GATED, ("sigmoid_mul", ()), ("gelu", ()), ("gelu_tanh", ())]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 17), (63, 1000), (2, 2050)])
def test_matches_reference(
    name: str,
    numbers: tuple[float, ...],
    num_tokens: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    wide = (torch.randn(num_tokens, 2 * size) * 4).to(dtype)

    def apply(ops: Backend | type[Backend], x: Tensor) -> Tensor:
        operands = x.chunk(2, dim=1) if name == "sigmoid_mul" else (x,)
        result: Tensor = getattr(ops, name)(*operands, *numbers)
        return result

    out = apply(twin.ops, wide.to(twin.device))
    assert out.dtype is dtype
    assert_close(out, apply(Backend, wide.double()))


@pytest.mark.parametrize(("name", "numbers"), GATED)
def test_extreme_gates_neither_overflow_nor_lose_a_nan(
    name: str, numbers: tuple[float, ...], twin: Twin
) -> None:
    gate_up = torch.tensor([[-1e30, -200.0, -90.0, 90.0, 1e30, torch.nan, 1.0, 1, 1, 1, 1, 1]])
    out = getattr(twin.ops, name)(gate_up.to(twin.device), *numbers)[0].cpu()
    assert out[:3].abs().max() < 1e-6
    if name == "clipped_swiglu":
        limited = 2 * 3.0 * torch.tensor(3 * 1.702).sigmoid()
        torch.testing.assert_close(out[3:5], limited.expand(2))
    else:
        assert out[3] == 90
        assert out[4] == torch.tensor(1e30)
    assert out[5].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_of_a_number_has_the_same_bytes_in_whole_lanes_and_behind_them(
    dtype: torch.dtype,
) -> None:
    ends = [0.0, -0.0, torch.inf, 1e-40, -1e-40, 3e38, -3e38, 5.42, -5.42]
    x = torch.cat([torch.tensor(ends), torch.linspace(-9, 9, 31 * 40 - len(ends))]).to(dtype)
    assert torch.equal(activations.gelu(x.view(-1, 31)).flatten(), activations.gelu(x[None])[0])
    assert activations.gelu(torch.full((1, 17), torch.nan)).isnan().all()


def test_ups_are_clipped_on_both_sides_and_keep_a_nan(twin: Twin) -> None:
    gate_up = torch.tensor([[1.0, 1, 1, 1, 1, -1e30, -7.5, 0.5, 7.5, torch.nan]])
    out = twin.ops.clipped_swiglu(gate_up.to(twin.device), 7.0, 1.702)[0].cpu()
    ups = torch.tensor([-6.0, -6.0, 1.5, 8.0])
    torch.testing.assert_close(out[:4], ups * torch.tensor(1.702).sigmoid())
    assert out[4].isnan()


def test_extreme_gates_of_sigmoid_mul(twin: Twin) -> None:
    gate = torch.tensor([[-1e30, -200.0, 200.0, 1e30, torch.nan]], device=twin.device)
    out = twin.ops.sigmoid_mul(torch.full((1, 5), 2.0, device=twin.device), gate)[0].cpu()
    assert out[:2].abs().max() < 1e-30
    assert out[2] == out[3] == 2
    assert out[4].isnan()
