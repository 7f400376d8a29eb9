"""Sampler: each sample's own parameters and random stream, whoever else is in the batch."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagedrun.kernels.ops import Backend
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.sampler import NO_TOKEN, Sampler
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.step_input import StepBuilder
from tests.support.made_step import made_sequence

VOCAB = 13
EOS = 4


@dataclass
class Asker:
    """A sequence of three prompt tokens that wants its next token."""

    index: int = 0
    num_output: int = 0
    samples: tuple[int, ...] = (0,)
    params: dict[str, Any] = field(default_factory=dict)


def sequence(
    index: int = 0, num_output: int = 0, samples: tuple[int, ...] = (0,), **params: Any
) -> Asker:
    return Asker(index, num_output, samples, params)


def logits_of(num_rows: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def draw(sampler: Sampler, logits: Tensor, askers: list[Asker]) -> list[list[int]]:
    """Return the tokens drawn for each sequence."""
    table = SequenceTable()
    builder = StepBuilder(table)
    for each in askers:
        made = made_sequence(
            (1, 2, 3),
            (7,) * each.num_output,
            index=each.index,
            table=table,
            samples=each.samples,
            **each.params,
        )
        made.num_computed_tokens = made.num_tokens
        builder.add(made, made.num_tokens - 1, made.num_tokens - 1)
    ids = iter(sampler.sample(logits, builder.build()).ids.tolist())
    return [[next(ids) for _ in each.samples] for each in askers]


@pytest.fixture
def sampler() -> Sampler:
    return Sampler([EOS], Device(torch.device("cpu"), Backend(), async_scheduling=False))


def test_greedy_takes_the_most_probable(sampler: Sampler) -> None:
    logits = logits_of(5)
    sequences = [sequence(index) for index in range(5)]
    assert draw(sampler, logits, sequences) == [[i] for i in logits.argmax(1).tolist()]


def test_nothing_to_sample(sampler: Sampler) -> None:
    assert draw(sampler, torch.empty(0, VOCAB), []) == []


def test_rows_keep_their_own_parameters(sampler: Sampler) -> None:
    """A greedy row beside a hot one, and a row that may choose among one token only."""
    logits = logits_of(3)
    hot = sequence(1, temperature=5.0)
    sequences = [sequence(0), hot, sequence(2, temperature=5.0, top_k=1)]
    seen = set()
    for seed in range(30):
        hot.params["seed"] = seed
        [first], [middle], [last] = draw(sampler, logits, sequences)
        assert first == int(logits[0].argmax())
        assert last == int(logits[2].argmax())
        seen.add(middle)
    assert len(seen) > 3


@pytest.mark.invariant("same draw in any batch")
@given(order=st.permutations(range(6)), kept=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_choice_does_not_depend_on_the_batch(order: list[int], kept: int) -> None:
    """Not on the order, nor on who else is there, nor on how many samples they draw."""
    sampler = Sampler([EOS], Device(torch.device("cpu"), Backend(), async_scheduling=False))
    logits = logits_of(6)
    sequences = [
        sequence(
            index * 10,
            num_output=index % 3,
            samples=tuple(range(index % 3 + 1)),
            temperature=0.3 * index,
            top_p=0.9,
            seed=index // 2,
            min_tokens=index % 2 * 3,
        )
        for index in range(6)
    ]
    alone = [draw(sampler, logits[i : i + 1], [sequences[i]])[0] for i in range(6)]
    rows = order[:kept]
    together = draw(sampler, logits[rows], [sequences[i] for i in rows])
    assert together == [alone[i] for i in rows]


def test_samples_of_a_request_draw_their_own_numbers(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)
    many = sequence(samples=tuple(range(50)), temperature=1.0, n=50)
    [drawn] = draw(sampler, logits, [many])
    assert len(drawn) == 50
    assert len(set(drawn)) > 5
    # Whether they are drawn together or each by itself.
    for sample in (0, 7, 49):
        single = sequence(samples=(sample,), temperature=1.0, n=50)
        assert draw(sampler, logits, [single]) == [[drawn[sample]]]


def test_the_stream_is_keyed_by_seed_row_and_position(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)

    def stream(index: int, seed: int, places: range) -> list[int]:
        return [
            draw(sampler, logits, [sequence(index, place, temperature=1.0, seed=seed)])[0][0]
            for place in places
        ]

    first = stream(0, 0, range(20))
    assert first == stream(0, 0, range(20))
    assert len(set(first)) > 3  # it moves on with the position
    assert first != stream(1, 0, range(20))
    assert first != stream(0, 1, range(20))
    assert stream(0, 0, range(10, 20)) == first[10:]  # a resumed sequence draws the same


def test_the_position_is_that_of_the_chosen_token(sampler: Sampler) -> None:
    """Three prompt tokens and two generated: the choice is for position 5."""
    chosen = draw(sampler, torch.zeros(1, VOCAB), [sequence(9, 2, temperature=1.0, seed=6)])
    noise = Backend.sample.__globals__["gumbel_noise"](VOCAB, 6, 5, 9, 0)
    assert chosen == [[int(noise.argmax())]]


def test_min_tokens_forbids_stops_until_they_are_there(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 9], logits[0, 2] = 50.0, 40.0, 30.0
    for num_output, expected in ((0, 2), (2, 2), (3, EOS), (4, EOS)):
        early = sequence(num_output=num_output, min_tokens=3, stop_token_ids=(9,))
        assert draw(sampler, logits, [early]) == [[expected]]
    assert draw(sampler, logits, [sequence(num_output=1, min_tokens=3)]) == [[9]]


def test_forbidding_touches_neither_the_neighbours_nor_the_given_logits(sampler: Sampler) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, EOS] = 50.0
    before = logits.clone()
    sequences = [sequence(0), sequence(1, min_tokens=2), sequence(2)]
    first, early, last = draw(sampler, logits, sequences)
    assert first == last == [EOS]
    assert early != [EOS]
    assert torch.equal(logits, before)


def test_a_stop_is_forbidden_to_every_sample_of_a_prompt(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS] = 50.0
    many = sequence(samples=tuple(range(8)), temperature=1.0, min_tokens=1, n=8)
    assert EOS not in draw(sampler, logits, [many])[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_choice_give_no_token(
    sampler: Sampler, bad: float, temperature: float
) -> None:
    logits = logits_of(3)
    logits[1, 6] = bad
    sequences = [sequence(i, samples=(0, 1), temperature=temperature) for i in range(3)]
    first, middle, last = draw(sampler, logits, sequences)
    assert middle == [NO_TOKEN, NO_TOKEN]
    assert NO_TOKEN not in [*first, *last]


def test_half_precision_logits(sampler: Sampler) -> None:
    logits = logits_of(4).to(torch.bfloat16)
    sequences = [sequence(i, min_tokens=i % 2, temperature=0.5 * i) for i in range(4)]
    drawn = draw(sampler, logits, sequences)
    assert all(0 <= token < VOCAB for [token] in drawn)


def test_extreme_parameters_reach_the_kernel_whole(sampler: Sampler) -> None:
    """The largest seed and top_k that SamplingParams lets through, in one batch of many."""
    pick = random.Random(0)
    sequences = [
        sequence(i, temperature=100.0, seed=2**63 - 1, top_k=2**31 - 1, top_p=1e-9 + pick.random())
        for i in range(4)
    ]
    assert all(0 <= token < VOCAB for [token] in draw(sampler, logits_of(4), sequences))


def test_log_probabilities_are_of_the_logits_that_the_model_gave(sampler: Sampler) -> None:
    """What processors write into the logits of a row does not change how likely its tokens were."""
    logits = logits_of(1)
    table = SequenceTable()
    builder = StepBuilder(table)
    made = made_sequence((1, 2, 3), (), table=table, allowed_token_ids=(3,), logprobs=0)
    made.num_computed_tokens = made.num_tokens
    builder.add(made, made.num_tokens - 1, made.num_tokens - 1)
    sampler.begin(made.request)
    drawn = sampler.sample(logits.clone(), builder.build())
    assert drawn.ids.tolist() == [3]
    assert drawn.logprobs is not None
    assert drawn.logprobs.logprobs.item() == pytest.approx(logits.log_softmax(1)[0, 3].item())
