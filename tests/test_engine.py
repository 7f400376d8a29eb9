"""Engine: what it refuses before anything is computed."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.alive import count_alive
from tests.support.engines import load_engine
from tests.support.tiny_models import tiny_engine


@pytest.mark.parametrize("asked", [65, 64, 40])
def test_a_length_for_which_the_pool_is_too_small_names_the_largest_that_fits(asked: int) -> None:
    engine = tiny_engine(dtype="float32", num_blocks=4, block_size=16, max_model_len=asked)
    # A row may be as long as that: its last token is never stored.
    request = Request(0, tuple(range(asked - 8)), SamplingParams(max_tokens=8, ignore_eos=True))
    (done,) = engine.start([request])
    assert done.error is None
    too_long = engine.reconfigured(max_model_len=66)
    sentence = (
        r"^max_model_len 66 does not fit: the KV pool has room for 4 blocks of 16 tokens; "
        r"the largest that fits is max_model_len 65$"
    )
    with pytest.raises(UsageError, match=sentence):
        too_long.start([request])


def test_a_pool_is_no_larger_than_the_run_can_use() -> None:
    """With windows to come nobody knows what they need: all the memory would be taken."""
    engine = tiny_engine(dtype="float32", block_size=16, max_model_len=40, max_num_seqs=5)
    request = Request(0, (1, 2, 3), SamplingParams(max_tokens=2, ignore_eos=True))
    with closing(engine.start([request], more=[])) as run:
        assert run.pool.num_blocks == (5 + 1) * 3
        assert len(list(run)) == 1


def test_no_more_than_one_window_is_held_beside_the_one_that_is_made() -> None:
    """Or three of them would be held at once, and each may be a million rows."""
    engine = tiny_engine(dtype="float32", max_num_seqs=2)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    rows = 20
    held: list[int] = []

    def window(number: int) -> list[Request]:
        first = rows * number
        return [Request(index, (index, 2, 3), params) for index in range(first, first + rows)]

    def windows() -> Iterator[list[Request]]:
        for number in range(1, 4):
            held.append(len(requests))
            yield window(number)

    def on_step(_: StepRecord) -> None:
        time.sleep(0.005)  # a window runs for longer than the next one takes to plan

    with (
        count_alive(Request) as requests,
        closing(engine.start(window(0), more=windows(), hooks=RunHooks(on_step))) as run,
    ):
        assert sum(1 for _ in run) == 4 * rows
    assert len(held) == 3
    assert max(held) < 1.5 * rows  # of the one that runs, and the last of the one before


def test_a_window_may_hold_what_cannot_be_asked() -> None:
    """It comes back when its window is taken, so that an input of nothing else is not kept."""
    engine = tiny_engine(dtype="float32")
    params = SamplingParams(max_tokens=1, ignore_eos=True)

    def refused(index: int) -> Completion:
        return Completion(Request(index, (), params), error=RowError("invalid_param", "no prompt"))

    num_made = 0

    def windows() -> Iterator[list[Request | Completion]]:
        nonlocal num_made
        for index in range(2, 12):
            num_made += 1
            yield [refused(index)]
        yield [Request(12, (1, 2, 3), params)]

    first = refused(0)
    with closing(engine.start([first, Request(1, (4, 5), params)], more=windows())) as run:
        completions = iter(run)
        assert next(completions) is first
        early = [next(completions) for _ in range(2)]
        assert num_made <= 4
        found = {each.request.index: each.error is None for each in (*early, *completions)}
    assert found == {index: index in (1, 12) for index in range(1, 13)}


def test_a_run_that_is_closed_leaves_no_row_to_the_next(make_model: MakeModel) -> None:
    """Processors of logits know rows by their index, and a next run has the same ones."""
    config = EngineConfig(model=make_model("llama", "closed"), dtype="float32", block_size=16)
    engine = load_engine(config)
    long = SamplingParams(max_tokens=50, regex="[ab]{60}")
    followed = engine.loaded.grammar_mask
    both = [Request(0, (5,), SamplingParams(max_tokens=1)), Request(1, (6,), long)]
    with closing(engine.start(both)) as run:
        assert next(iter(run)).request.index == 0
        assert followed.num_followed == 1
    assert followed.num_followed == 0
