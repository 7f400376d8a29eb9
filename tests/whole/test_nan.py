"""Logits without a choice: the row fails, nothing of it is shared, the others do not notice."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.paged.execution.model_runner import ModelRunner
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from tests.conftest import MakeModel
from tests.support.engines import load_engine
from tests.support.tiny_models import tiny_engine

POISON = 7  # the token whose embedding is NaN or infinite


@pytest.fixture(params=[torch.nan, torch.inf], ids=["nan", "infinity"])
def folders(
    request: pytest.FixtureRequest, make_model: MakeModel, tmp_path: Path
) -> tuple[Path, Path]:
    """Return a model and the same model with one token poisoned."""
    good = make_model("qwen3", "nan", tie_word_embeddings=False)
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    tensors = load_file(bad / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = request.param
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    return good, bad


def test_a_poisoned_row_fails_alone(folders: tuple[Path, Path]) -> None:
    good, bad = folders
    shared = [20, 21, 22, 23] * 20
    prompts = [
        [*shared, 40, 41],
        [*shared, POISON, 42],
        [POISON, *shared],
        [POISON, *shared, 43],
        [*shared, 40, 44, 45],
        [50, 51],
    ]
    params = [SamplingParams(max_tokens=12, ignore_eos=True, n=1 + i % 2) for i in range(6)]
    # POISON may be generated too, and fails its row then: keep to rows that do not meet it.
    expected = LLM(good, dtype="float32").generate(prompts, params)
    llm = LLM(bad, dtype="float32", max_num_seqs=4)
    got = llm.generate(prompts, params)
    for prompt, before, after in zip(prompts, expected, got, strict=True):
        tokens = [token for output in before.outputs for token in output.token_ids[:-1]]
        if POISON in prompt or POISON in tokens:
            assert after.error is not None
            assert after.error.code == "nan_logits"
            assert after.outputs == ()
        else:
            assert after.error is None
            assert [o.token_ids for o in after.outputs] == [o.token_ids for o in before.outputs]
    failed = [completion.error is not None for completion in got]
    assert failed[1:4] == [True] * 3
    assert not all(failed)
    assert llm.report["finish_reasons"]["error"] == sum(failed)


def test_a_row_that_fails_in_several_ways_is_written_once(folders: tuple[Path, Path]) -> None:
    """By its prompt's log-probabilities, and by each of its samples."""
    params = SamplingParams(n=3, temperature=1.0, max_tokens=4, prompt_logprobs=0)
    requests = [Request(0, (20, POISON, 21, 22), params), Request(1, (50, 51), params)]
    run = load_engine(EngineConfig(model=folders[1], dtype="float32")).start(requests)
    done = sorted(run, key=lambda each: each.request.index)
    assert [each.request.index for each in done] == [0, 1]
    assert done[0].error is not None
    assert run.report()["finish_reasons"]["error"] == 1


def test_a_row_that_fails_by_its_prompt_has_no_answer_of_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The logits behind its last token are as they should be, and end the answer."""
    scores = ModelRunner._scores

    def poisoned(runner: ModelRunner, hidden: Tensor, step: StepInput) -> TokenLogprobs | None:
        found = scores(runner, hidden, step)
        if found is not None:
            found.logprobs.fill_(torch.nan)
        return found

    monkeypatch.setattr(ModelRunner, "_scores", poisoned)
    engine = tiny_engine(num_layers=1, dtype="float32", device="cpu")
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    [found] = engine.start([Request(0, (5, 6, 7), params)])
    assert found.error is not None
    assert found.error.code == "nan_logits"
    assert found.outputs == ()
