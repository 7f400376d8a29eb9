from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin
from tests.kernels.recurrence.states import state_inputs
from tests.support.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
LENGTHS, READS = [5, 1, 1, 0, 12, 3, 6], [0, -1, 3, 1, 5, 8, -1]
WRITES: list[int | list[int]] = [
    4,
    6,
    3,
    7,
    -1,
    [8, 9, 10],
    [11, 12],
]  # two with drafts, one of them in place


@dataclass(frozen=True)
class Made:
    qkv: Tensor
    gates: Tensor
    a_log: Tensor
    dt_bias: Tensor
    state: Tensor

    def double(self) -> "Made":
        return Made(*(each.double() for each in vars(self).values()))

    def to(self, device: torch.device) -> "Made":
        return Made(*(each.clone().to(device) for each in vars(self).values()))


def made(
    heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype, num_tokens: int
) -> Made:
    (num_key_heads, num_heads), (key_dim, value_dim) = heads, dims
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return Made(
        normal(num_tokens, 2 * num_key_heads * key_dim + num_heads * value_dim).to(dtype),
        (2 * normal(num_tokens, 2 * num_heads)).to(dtype),
        normal(num_heads),
        2 * normal(num_heads),
        normal(13, num_heads, key_dim, value_dim),
    )


@every_pair(
    in_turn="dtype",
    shape=[((2, 4), (8, 16)), ((1, 3), (7, 5)), ((2, 2), (64, 40)), ((1, 1), (128, 128))],
    dtype=DTYPES,
)
def test_matches_reference(
    shape: tuple[tuple[int, int], tuple[int, int]],
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    given = made(*shape, dtype, sum(LENGTHS))
    inputs = state_inputs(LENGTHS, READS, WRITES)
    exact, own = given.double(), given.to(twin.device)
    expected = Backend.gated_delta_rule(**vars(exact), inputs=inputs)
    placed = inputs.placed(lambda each: each.to(twin.device))
    out = twin.ops.gated_delta_rule(**vars(own), inputs=placed)
    assert out.dtype is dtype
    assert_close(out, expected)
    assert_close(own.state, exact.state)
    untouched = [0, 1, 2, 5, 7]
    assert torch.equal(own.state[untouched].cpu(), given.state[untouched])


@every_pair(in_turn="dtype", shape=[((2, 4), (8, 16)), ((1, 2), (64, 40))], dtype=DTYPES)
def test_no_cut_between_two_tokens_changes_a_bit(
    shape: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype, twin: Twin
) -> None:
    num_tokens = 9
    given = made(*shape, dtype, num_tokens).to(twin.device)

    def run(cuts: list[int], read: int) -> tuple[Tensor, Tensor]:
        state, parts = given.state.clone(), []
        for first, last in zip([0, *cuts], [*cuts, num_tokens], strict=True):
            inputs = state_inputs([last - first], [read if not first else 1], [1], scattered=False)
            parts.append(
                twin.ops.gated_delta_rule(
                    given.qkv[first:last],
                    given.gates[first:last],
                    given.a_log,
                    given.dt_bias,
                    state,
                    inputs.placed(lambda each: each.to(twin.device)),
                )
            )
        return torch.cat(parts), state[1]

    for read in (0, -1):
        whole = run([], read)
        for cuts in ([1], [5, 6, 7, 8]):
            for one, other in zip(whole, run(cuts, read), strict=True):
                assert torch.equal(one, other)


def test_a_chunk_does_not_depend_on_who_else_is_there(twin: Twin) -> None:
    given = made((2, 4), (16, 32), torch.float32, sum(LENGTHS)).to(twin.device)
    inputs = state_inputs(LENGTHS, READS, WRITES)
    state = given.state.clone()
    placed = inputs.placed(lambda each: each.to(twin.device))
    together = twin.ops.gated_delta_rule(
        given.qkv, given.gates, given.a_log, given.dt_bias, state, placed
    )
    for chunk, tokens in enumerate(inputs.chunks()):
        if not len(tokens):
            continue
        own = given.state.clone()
        alone = state_inputs([len(tokens)], [READS[chunk]], [WRITES[chunk]], scattered=False)
        rows = tokens.to(twin.device)
        out = twin.ops.gated_delta_rule(
            given.qkv[rows],
            given.gates[rows],
            given.a_log,
            given.dt_bias,
            own,
            alone.placed(lambda each: each.to(twin.device)),
        )
        assert torch.equal(out, together[rows])
        for slot in alone.write_slots.tolist():
            assert slot < 0 or torch.equal(own[slot], state[slot])


def test_what_hardly_decays_still_does(twin: Twin) -> None:
    """exp(a) is lost beside 1, but the logarithm of their sum is exp(a)."""
    num_tokens = 250
    given = made((1, 1), (8, 16), torch.float32, num_tokens)
    given.gates[:] = -15.0  # the state takes nothing new, and fades by 16 * 3e-7 a token
    given.dt_bias[:] = 0.0
    given.a_log[:] = torch.tensor(16.0).log()
    inputs = state_inputs([num_tokens], [0], [1], scattered=False)
    exact, own = given.double(), given.to(twin.device)
    Backend.gated_delta_rule(**vars(exact), inputs=inputs)
    placed = inputs.placed(lambda each: each.to(twin.device))
    twin.ops.gated_delta_rule(**vars(own), inputs=placed)
    assert torch.allclose(own.state[1].cpu().double(), exact.state[1], rtol=1e-4, atol=1e-5)
    faded = own.state[1].cpu().abs().sum() / given.state[0].abs().sum()
    assert 0.997 < faded < 0.9995


@every_pair(in_turn="first", first=[5, 9], dims=[(8, 16), (64, 40)])
def test_each_draft_leaves_the_state_of_a_walk_that_ends_there(
    dims: tuple[int, int], first: int, twin: Twin
) -> None:
    given = made((2, 4), dims, torch.bfloat16, 6).to(twin.device)

    def states(length: int, writes: list[int]) -> Tensor:
        state, inputs = given.state.clone(), state_inputs([length], [5], [writes], scattered=False)
        twin.ops.gated_delta_rule(
            given.qkv[:length],
            given.gates[:length],
            given.a_log,
            given.dt_bias,
            state,
            inputs.placed(lambda each: each.to(twin.device)),
        )
        return state

    slots = [first, 6, 7, 8]
    together = states(6, slots)
    for length, slot in zip(range(3, 7), slots, strict=True):
        assert torch.equal(together[slot], states(length, [5])[5])
