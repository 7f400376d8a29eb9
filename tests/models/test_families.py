"""Every family against Transformers: tokens, and the likelihoods of the first step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.execution.run import RunPolicy
from tests.models.families import TINY, save_tiny
from tests.models.oracle import LENGTHS, NUM_TOKENS, Oracle, ask, check
from tests.scheduling.admit_all import AdmitAll


@pytest.fixture(scope="module")
def make_oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    made: dict[str, Oracle] = {}

    def make(name: str) -> Oracle:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = ask(save_tiny(name, folder), folder)
        return made[name]

    return make


@pytest.mark.parametrize("name", TINY)
def test_tokens_and_first_logits_are_those_of_transformers(
    name: str, make_oracle: Callable[[str], Oracle]
) -> None:
    report = check(make_oracle(name), max_num_batched_tokens=64)
    assert report["prefix"]["hit_tokens"] > 0


# One of each kind: norms behind, mixed windows with caps, queries that grow, norms after rotation,
# sinks, keys that are values with other heads by kind, layers that read earlier keys.
KINDS = ["olmo2", "gemma2", "ministral3", "hunyuan_v1_dense", "gpt_oss", "gemma4", "gemma4-e"]
MODES = ["swap", "recompute", "swap", "recompute", "swap", "recompute", "swap"]


@pytest.mark.parametrize(("name", "mode"), [*zip(KINDS, MODES, strict=True)])
def test_tokens_are_the_same_when_sequences_give_way(
    name: str, mode: str, make_oracle: Callable[[str], Oracle]
) -> None:
    report = check(
        make_oracle(name),
        RunPolicy(AdmitAll),
        block_size=16,
        num_blocks=-(-(max(LENGTHS) + NUM_TOKENS) // 16) + 2,
        preemption_mode=mode,
        prefix_caching=False,
    )
    assert report["preemptions"][mode] > 0


@pytest.mark.parametrize("name", ["gemma2", "ministral3", "gpt_oss", "gemma4-e"])
def test_tokens_are_the_same_when_a_prefix_is_read_once(
    name: str, make_oracle: Callable[[str], Oracle]
) -> None:
    policy = RunPolicy(read_once=ReadOnce(2, 1))  # the two longest rows share a partition
    read = check(make_oracle(name), policy)["prefix"]
    assert read["attention_bytes_read"] < read["attention_bytes_without_sharing"]


@pytest.mark.parametrize("name", ["gemma3", "granite", "gpt_oss", "gemma4-e", "gemma4-moe"])
def test_a_row_has_the_same_bytes_alone_in_bfloat16(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path, torch.bfloat16)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate(LENGTHS)]
    llm = LLM(tmp_path, dtype="bfloat16", device="cpu")
    together = llm.generate(prompts, params)
    for index in (0, 5, 12):
        [alone] = llm.generate([prompts[index]], params)
        assert alone.outputs == together[index].outputs
    # In small chunks, a few rows at a time, and giving way to each other.
    small: dict[str, Any] = {
        "max_num_batched_tokens": 48,
        "max_num_seqs": 4,
        "block_size": 16,
        "num_blocks": 18,
    }
    cramped = LLM(tmp_path, dtype="bfloat16", device="cpu", **small)
    for whole, cut in zip(together, cramped.generate(prompts, params), strict=True):
        assert cut.outputs == whole.outputs
