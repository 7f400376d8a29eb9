"""Answers inside a pipeline of Ray Data."""

from typing import Any

import numpy as np
import pytest

from pagedrun import LLM, SamplingParams, UsageError
from pagedrun.ray import BatchAnswers, map_batches
from pagedrun.recipes.demo import demo_model_folder

PARAMS = SamplingParams(max_tokens=6)
PROMPTS = [f"Who is in room {number}?" for number in range(12)]


@pytest.fixture(scope="module")
def expected() -> list[str | None]:
    answers = LLM(demo_model_folder(), device="cpu").generate(PROMPTS, PARAMS)
    return [each.text for each in answers]


def test_a_batch_keeps_its_columns_and_gets_those_of_its_answers(
    expected: list[str | None],
) -> None:
    answers = BatchAnswers(demo_model_folder(), PARAMS, "question", {"device": "cpu"})
    ids = np.empty(13, dtype=object)
    ids[:] = [*PROMPTS, np.array([1 << 40])]
    found = answers({"question": ids, "number": np.arange(13)})
    assert found["text"].tolist() == [*expected, None]
    assert found["number"].tolist() == list(range(13))
    assert [each is None for each in found["error"]] == [True] * 12 + [False]
    assert found["finish_reason"][0] in ("stop", "length")
    assert found["completion_tokens"][:12].min() > 0
    with pytest.raises(UsageError, match="no column question; it has prompt: pass prompt_column"):
        answers({"prompt": ids})


def test_ray_data_is_asked_for_actors_that_plan_a_batch_as_a_whole() -> None:
    class Asked:
        def map_batches(self, fn: type, **options: Any) -> dict[str, Any]:
            return {"fn": fn, **options}

    found = map_batches(Asked(), "some/model", PARAMS, concurrency=3, num_cpus=2)
    assert found["fn"] is BatchAnswers
    assert (found["batch_size"], found["concurrency"], found["num_cpus"]) == (4096, 3, 2)
    assert found["fn_constructor_kwargs"]["model"] == "some/model"


@pytest.mark.long
def test_a_dataset_is_answered(expected: list[str | None]) -> None:
    ray = pytest.importorskip("ray")
    data = pytest.importorskip("ray.data")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        rows = data.from_items([{"prompt": each} for each in PROMPTS])
        found = map_batches(rows, demo_model_folder(), PARAMS, engine={"device": "cpu"}, num_cpus=1)
        texts = {row["prompt"]: row["text"] for row in found.take_all()}
    finally:
        ray.shutdown()
    assert [texts[each] for each in PROMPTS] == expected
