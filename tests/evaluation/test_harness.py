"""lm-evaluation-harness finds the same with pagedrun as with Transformers."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from pagedrun import HarnessModel
from tests.evaluation.tasks import DEMO, NAMES

# None is all that the model can read. What is shorter cuts prompts, and texts into windows.
LENGTHS = (None, 90)


@cache
def evaluated(model: str, tasks: Path, max_length: int | None) -> dict[str, Any]:
    args: dict[str, Any] = {"pretrained": str(DEMO), "dtype": "float32", "device": "cpu"}
    if max_length is not None:
        args["max_length"] = max_length
    found: dict[str, Any] = simple_evaluate(
        model=HarnessModel(**args) if model == "pagedrun" else model,
        model_args=args,
        tasks=[*NAMES],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    return found


def answers(found: dict[str, Any], task: str) -> Iterator[Any]:
    """Yield what the model said to each request of a task, in order."""
    samples = sorted(found["samples"][task], key=lambda each: int(each["doc_id"]))
    for sample in samples:
        for answer in sample["resps"]:
            yield from answer


@pytest.mark.filterwarnings("ignore:.*contexts are cut on the left.*:RuntimeWarning")
@pytest.mark.parametrize("max_length", LENGTHS)
class TestAsTransformers:
    def test_the_same_metrics(self, task_folder: Path, max_length: int | None) -> None:
        ours = evaluated("pagedrun", task_folder, max_length)["results"]
        theirs = evaluated("hf", task_folder, max_length)["results"]
        assert set(ours) == set(NAMES)
        for task in NAMES:
            figures = {k: v for k, v in theirs[task].items() if isinstance(v, float)}
            assert {k: ours[task][k] for k in figures} == pytest.approx(figures, rel=1e-5)
        if max_length is None:  # or it would be the same for any model
            assert ours["staff_choice"]["acc,none"] > 0.5
            assert ours["staff_answer"]["exact_match,none"] > 0.5

    def test_the_same_log_likelihoods(self, task_folder: Path, max_length: int | None) -> None:
        ours = list(answers(evaluated("pagedrun", task_folder, max_length), "staff_choice"))
        theirs = list(answers(evaluated("hf", task_folder, max_length), "staff_choice"))
        assert [each[0] for each in ours] == pytest.approx([each[0] for each in theirs], abs=1e-4)
        assert [each[1] for each in ours] == [each[1] for each in theirs]
        assert max_length is not None or {each[1] for each in ours} == {True, False}

    def test_the_same_rolling_log_likelihoods(
        self, task_folder: Path, max_length: int | None
    ) -> None:
        ours = list(answers(evaluated("pagedrun", task_folder, max_length), "staff_text"))
        theirs = list(answers(evaluated("hf", task_folder, max_length), "staff_text"))
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-4)
        assert len(ours) == 3

    def test_the_same_answers(self, task_folder: Path, max_length: int | None) -> None:
        ours = list(answers(evaluated("pagedrun", task_folder, max_length), "staff_answer"))
        assert ours == list(answers(evaluated("hf", task_folder, max_length), "staff_answer"))
        assert len(set(ours)) > 1
