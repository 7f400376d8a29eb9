from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin
from tests.kernels.recurrence.states import state_inputs
from tests.support.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
# Shorter than the state, as long, one token, none; two have drafts, one of them in place.
LENGTHS, READS = [5, 1, 2, 3, 0, 20, 4, 7], [0, -1, 3, 2, 1, 5, 8, -1]
WRITES: list[int | list[int]] = [4, 6, 3, -1, 7, 5, [8, 9, 10, 11], [12, 13]]


def made(num_channels: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(LENGTHS), num_channels, generator=generator).to(dtype)
    weight = torch.randn(num_channels, size, generator=generator).to(dtype)
    bias = torch.randn(num_channels, generator=generator).to(dtype)
    state = torch.randn(14, size - 1, num_channels, generator=generator).to(dtype)
    return x, weight, bias, state


@every_pair(
    in_turn="dtype",
    # num_channels, size, activate, has_bias
    form=[(7, 4, True, False), (64, 3, False, True), (1030, 4, True, True), (48, 2, False, False)],
    dtype=DTYPES,
)
def test_matches_reference(
    form: tuple[int, int, bool, bool],
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    num_channels, size, activate, has_bias = form
    x, weight, bias, state = made(num_channels, size, dtype)
    inputs = state_inputs(LENGTHS, READS, WRITES)
    expected_state = state.double()
    given = bias.double() if has_bias else None
    expected = Backend.causal_conv(
        x.double(), weight.double(), given, expected_state, inputs, activate
    )
    state = state.to(twin.device)
    out = twin.ops.causal_conv(
        x.to(twin.device),
        weight.to(twin.device),
        bias.to(twin.device) if has_bias else None,
        state,
        inputs.placed(lambda each: each.to(twin.device)),
        activate,
    )
    assert out.dtype is dtype
    assert_close(out, expected)
    assert torch.equal(state.cpu().double(), expected_state)  # inputs are copied, not computed


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_cut_between_two_tokens_changes_a_bit(dtype: torch.dtype, twin: Twin) -> None:
    x, weight, _, state = (each.to(twin.device) for each in made(130, 4, dtype))
    num_tokens = 9

    def run(cuts: list[int], read: int) -> tuple[Tensor, Tensor]:
        own, parts = state.clone(), []
        for first, last in zip([0, *cuts], [*cuts, num_tokens], strict=True):
            inputs = state_inputs([last - first], [read if not first else 1], [1], scattered=False)
            placed = inputs.placed(lambda each: each.to(twin.device))
            part = x[first:last].contiguous()
            parts.append(twin.ops.causal_conv(part, weight, None, own, placed, True))
        return torch.cat(parts), own[1]

    for read in (0, -1):
        whole = run([], read)
        for cuts in ([1], [1, 2, 3], [5, 6]):
            for one, other in zip(whole, run(cuts, read), strict=True):
                assert torch.equal(one, other)


def test_columns_of_a_wider_product(twin: Twin) -> None:
    x, weight, _, state = (each.to(twin.device) for each in made(64, 3, torch.float32))
    wide = torch.cat([torch.full_like(x, torch.nan), x, torch.full_like(x, torch.nan)], dim=1)
    inputs = state_inputs(LENGTHS, READS, WRITES).placed(lambda each: each.to(twin.device))
    expected = twin.ops.causal_conv(x, weight, None, state.clone(), inputs, False)
    out = twin.ops.causal_conv(wide[:, 64:128], weight, None, state, inputs, False)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("first", [5, 9], ids=["in place", "elsewhere"])
def test_each_draft_leaves_the_state_of_a_walk_that_ends_there(first: int, twin: Twin) -> None:
    x, weight, _, state = (each.to(twin.device) for each in made(1030, 4, torch.bfloat16))
    slots: list[int | list[int]] = [[first, 6, 7, 8]]
    together = state.clone()
    inputs = state_inputs([6], [5], slots, scattered=False)
    placed = inputs.placed(lambda each: each.to(twin.device))
    twin.ops.causal_conv(x[:6].contiguous(), weight, None, together, placed, True)
    for length, slot in zip(range(3, 7), (first, 6, 7, 8), strict=True):
        own, inputs = state.clone(), state_inputs([length], [5], [5], scattered=False)
        placed = inputs.placed(lambda each: each.to(twin.device))
        twin.ops.causal_conv(x[:length].contiguous(), weight, None, own, placed, True)
        assert torch.equal(together[slot], own[5])
