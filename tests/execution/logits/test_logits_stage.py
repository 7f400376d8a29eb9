"""The logits stage: processors, added from outside, on every path and with async scheduling."""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.logits.logits_processor import (
    EarlyStops,
    LogitsProcessor,
    SamplingBatch,
)
from pagedrun.paged.execution.logits.token_processors import MinTokens
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.made_step import MadeChunk, made_step
from tests.support.tiny_models import tiny_config, tiny_engine

Answers = list[tuple[int, ...]]


@dataclass
class NoRepeat(LogitsProcessor):
    """Never the token before: needs to have seen it."""

    needs_newest_token = True
    last: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: dict[int, Request] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)

    def begin(self, request: Request) -> None:
        self.begun[request.index] = request

    def end(self, row: int) -> None:
        self.ended.append(row)

    def applies(self, draws: SamplingMetadata) -> bool:
        return len(draws) > 0

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        names = zip(rows.tolist(), samples.tolist(), strict=True)
        self.last |= dict(zip(names, tokens.tolist(), strict=True))

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        assert batch.draws is not None
        logits = logits.clone()
        names = zip(batch.draws.row.tolist(), batch.draws.sample.tolist(), strict=True)
        for row, name in enumerate(names):
            if name in self.last:
                logits[row, self.last[name]] = -torch.inf
        return logits


class OddOnly(LogitsProcessor):
    """Odd tokens only: works on the device by itself."""

    can_be_captured = True

    def applies(self, draws: SamplingMetadata) -> bool:
        return len(draws) > 0

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        raise AssertionError("told of tokens that it does not need")

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        is_even = torch.arange(logits.shape[1]) % 2 == 0
        return logits.masked_fill(is_even, -torch.inf)


def answers(
    params: SamplingParams, async_scheduling: bool, graphs: bool, *processors: LogitsProcessor
) -> tuple[Answers, int]:
    """Run a few rows; return their answers, and how many shapes of steps were captured."""
    device = replace(choose_device("cpu"), async_scheduling=async_scheduling, graphs=graphs)
    engine = tiny_engine(
        on=device,
        num_layers=1,
        processors=(MinTokens(), *processors),
        device="cpu",
        dtype="float32",
    )
    run = engine.start([Request(i, (5, 6, 7 + i), params) for i in range(3)])
    found = {
        (completion.request.index, output.index): output.token_ids
        for completion in run
        for output in completion.outputs
    }
    return [found[name] for name in sorted(found)], len(run.captured_shapes)


PATHS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("async_scheduling", "graphs"), PATHS)
def test_a_processor_that_needs_the_newest_token_has_it(
    async_scheduling: bool, graphs: bool
) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    plain, _ = answers(params, False, False)
    assert any(a == b for each in plain for a, b in itertools.pairwise(each))
    processor = NoRepeat()
    found, num_captured = answers(params, async_scheduling, graphs, processor)
    assert num_captured == 0
    assert sorted(processor.begun) == sorted(processor.ended) == [0, 1, 2]
    assert all(a != b for each in found for a, b in itertools.pairwise(each))
    assert found == answers(params, False, False, NoRepeat())[0]


@pytest.mark.parametrize(("async_scheduling", "graphs"), PATHS)
def test_a_processor_that_can_be_captured_is(async_scheduling: bool, graphs: bool) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, n=2)
    found, num_captured = answers(params, async_scheduling, graphs, OddOnly())
    assert all(token % 2 for each in found for token in each)
    assert (num_captured > 0) == graphs
    assert found == answers(params, False, False, OddOnly())[0]


@pytest.mark.parametrize(("async_scheduling", "graphs"), PATHS)
def test_min_tokens_on_every_path(async_scheduling: bool, graphs: bool) -> None:
    """Half of the vocabulary would stop the answer: only what forbids it keeps it going."""
    stops = tuple(range(0, tiny_config().vocab_size, 2))
    params = SamplingParams(max_tokens=20, min_tokens=9, temperature=1.0, stop_token_ids=stops)
    found, num_captured = answers(params, async_scheduling, graphs)
    assert (num_captured > 0) == graphs
    for tokens in found:
        assert len(tokens) >= 9
        assert not set(tokens[:9]) & set(stops)
    assert any(len(tokens) < 20 for tokens in found)
    assert found == answers(params, False, False)[0]


def test_rows_without_stop_tokens_are_left_alone() -> None:
    early = (("min_tokens", 3), ("max_tokens", 9))
    chunk = MadeChunk([1, 2], [3], [0], 2, 3, params=(*early, ("stop_token_ids", (4, 5))))
    bare = MadeChunk([1, 2], [3], [0], 2, 3, params=early)
    draws = made_step(chunk, bare, MadeChunk([1, 2], [3], [0], 2, 3)).draws
    stops = EarlyStops.of(draws, ())
    assert stops is not None
    assert stops.num_missing.tolist() == [2, 0, 0]
    logits = torch.from_numpy(np.arange(24, dtype=np.float32).reshape(3, 8))
    forbidden = stops.forbidden(logits)
    assert forbidden[0, 4:6].tolist() == [-torch.inf] * 2
    forbidden[0, 4:6] = logits[0, 4:6]
    assert torch.equal(forbidden, logits)
    assert EarlyStops.of(made_step(bare).draws, ()) is None
