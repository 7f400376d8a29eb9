"""An engine that goes from step to step without a token is stopped, and says what it holds."""

import json

import pytest

from pagedrun import SamplingParams
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.scheduling.monitoring import MIN_STEPS, StallDetector
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import EngineStalled
from pagedrun.paged.values.request import Request
from tests.conftest import MakeModel
from tests.support.engines import load_engine


def test_steps_without_a_token_are_counted() -> None:
    watch = StallDetector(max_model_len=100_000, max_num_batched_tokens=100)
    assert watch.max_steps == MIN_STEPS + 4 * 1000
    assert not any(watch.is_stalled(0) for _ in range(watch.max_steps))
    assert watch.is_stalled(0)
    assert not watch.is_stalled(1)
    assert not watch.is_stalled(0)


def test_the_longest_prompt_in_the_smallest_steps_is_no_stall(make_model: MakeModel) -> None:
    model = make_model("qwen3", "stall", max_position_embeddings=128)
    config = EngineConfig(model=model, dtype="float32", max_num_batched_tokens=1)
    request = Request(0, (5,) * 120, SamplingParams(max_tokens=2, ignore_eos=True))
    (completion,) = load_engine(config, RunPolicy(min_stall_steps=0)).start([request])
    assert len(completion.outputs[0].token_ids) == 2


def test_the_state_is_told_without_the_prompts(make_model: MakeModel) -> None:
    model = make_model("qwen3", "stall")
    config = EngineConfig(model=model, dtype="float32", max_num_batched_tokens=256)
    prompts = [[7] * 400, *([index, *range(200)] for index in range(3))]
    params = SamplingParams(max_tokens=4)
    requests = [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]
    with pytest.raises(
        EngineStalled, match=r"no row got a token in \d+ steps: \d running"
    ) as caught:
        list(load_engine(config, RunPolicy(min_stall_steps=-10)).start(requests))
    state = json.loads(json.dumps(caught.value.state))
    running = state["sequences"]["running"]
    assert state["running"] == len(running) > 0
    blocks = {block for each in running for block in each["block_table"]}
    assert len(blocks) == state["pool"]["held"]
    assert {"row", "prompt_tokens", "block_table"} <= set(running[0])
    assert not any("token_ids" in name for each in running for name in each)
