"""Models that the code of Transformers computes, over the paged cache, against themselves."""

from pathlib import Path

import pytest
import torch

from pagedrun import LLM, SamplingParams
from pagedrun.paged.execution.run import RunPolicy
from tests.models.oracle import NUM_TOKENS, MakeOracle, check
from tests.models.transformers_backend.library_models import LIBRARY
from tests.support.admit_all import AdmitAll
from tests.support.every_pair import long_except
from tests.support.families import save_tiny

# Around the borders of blocks of 16, of a window of 50, and of chunks of 64.
LENGTHS = (1, 17, 49, 51, 70)


# Beside those that give way below: residuals in parallel and partial rotation, windows, sinks.
TELLING = ["gpt_neox", "starcoder2", "gpt_oss"]


@pytest.mark.parametrize("name", long_except(LIBRARY, TELLING))
def test_tokens_and_first_logits_are_those_of_transformers(
    name: str, make_oracle: MakeOracle
) -> None:
    # Layer norms with biases let small random models say little: their logits must do.
    oracle, few = make_oracle(name, LIBRARY[name], LENGTHS), 2
    report = check(oracle, min_distinct=few, model_impl="transformers", max_num_batched_tokens=64)
    assert report["prefix"]["hit_tokens"] > 0
    assert report["library"]["computed_by"].startswith("transformers 5")
    assert 0 < report["library"]["largest_difference"] < 1e-5
    if name != "gpt_oss":  # its experts have biases, and are computed by the library's own loop
        assert report["library"]["rows_depend_on_batch"] is False


GIVING_WAY = [("gpt2", "swap"), ("olmoe", "recompute"), ("deepseek_v3", "swap")]


@pytest.mark.parametrize(("name", "mode"), GIVING_WAY)
def test_tokens_are_the_same_when_sequences_give_way(
    name: str, mode: str, make_oracle: MakeOracle
) -> None:
    report = check(
        make_oracle(name, LIBRARY[name], LENGTHS),
        RunPolicy(AdmitAll),
        model_impl="transformers",
        num_blocks=-(-(max(LENGTHS) + NUM_TOKENS) // 16) + 2,
        preemption_mode=mode,
        prefix_caching=False,
    )
    assert report["preemptions"][mode] > 0


@pytest.mark.parametrize("name", long_except(["olmoe", "stablelm"], ["olmoe"]))
def test_a_row_has_the_same_bytes_alone_in_bfloat16(name: str, tmp_path: Path) -> None:
    save_tiny(LIBRARY[name], tmp_path, torch.bfloat16)
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3)
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate(LENGTHS)]
    llm = LLM(tmp_path, model_impl="transformers", dtype="bfloat16", device="cpu")
    together = llm.generate(prompts, params)
    assert llm.report["library"]["rows_depend_on_batch"] is False
    for index in (0, 2, 4):
        [alone] = llm.generate([prompts[index]], params)
        assert alone.error is None
        assert alone.outputs == together[index].outputs
