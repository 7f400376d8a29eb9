"""Every family against Transformers: tokens, and the likelihoods of the first step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.models.model_config import ModelConfig
from tests.models.oracle import LENGTHS, NUM_TOKENS, MakeOracle, check
from tests.support.admit_all import AdmitAll
from tests.support.every_pair import long_except
from tests.support.families import TINY, save_tiny
from tests.support.mixture_families import MIXTURES

FAMILIES = {**TINY, **MIXTURES}


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_first_logits_are_those_of_transformers(
    name: str, make_oracle: MakeOracle
) -> None:
    oracle = make_oracle(name, FAMILIES[name])
    report = check(oracle, max_num_batched_tokens=64)
    assert report["prefix"]["hit_tokens"] > 0
    network = ModelConfig.from_folder(oracle.folder).network
    tied = network.embedding.num_bytes(4) if network.head is None else 0
    assert report["memory"]["weights"] == network.num_bytes(4) + tied


# One of each kind: norms behind, mixed windows with caps, queries that grow, norms after rotation,
# sinks, keys that are values with other heads by kind, layers that read earlier keys, routers.
SWAPPED = ["olmo2", "ministral3", "gpt_oss", "gemma4-e", "glm4_moe"]
RECOMPUTED = ["gemma2", "hunyuan_v1_dense", "gemma4", "minimax_m2"]


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "swap") for name in SWAPPED), *((name, "recompute") for name in RECOMPUTED)],
)
def test_tokens_are_the_same_when_sequences_give_way(
    name: str, mode: str, make_oracle: MakeOracle
) -> None:
    report = check(
        make_oracle(name, FAMILIES[name]),
        RunPolicy(AdmitAll),
        block_size=16,
        num_blocks=-(-(max(LENGTHS) + NUM_TOKENS) // 16) + 2,
        preemption_mode=mode,
        prefix_caching=False,
    )
    assert report["preemptions"][mode] > 0


@pytest.mark.parametrize("name", ["gemma2", "ministral3", "gpt_oss", "gemma4-e"])
def test_tokens_are_the_same_when_a_prefix_is_read_once(name: str, make_oracle: MakeOracle) -> None:
    policy = RunPolicy(read_once=ReadOnce(2, 1))  # the two longest rows share a partition
    read = check(make_oracle(name, FAMILIES[name]), policy)["prefix"]
    assert read["attention_bytes_read"] < read["attention_bytes_without_sharing"]


# The last two have routers in float32 beside layers that are not.
@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize(
    "name",
    long_except(
        ["gemma3", "granite", "gpt_oss", "gemma4-e", "gemma4-moe", "glm4_moe", "ernie4_5_moe"],
        ["gemma3", "gpt_oss", "gemma4-e", "glm4_moe"],
    ),
)
def test_a_row_has_the_same_bytes_alone_in_bfloat16(name: str, tmp_path: Path) -> None:
    save_tiny(FAMILIES[name], tmp_path, torch.bfloat16)
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3)
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate(LENGTHS)]
    llm = LLM(tmp_path, dtype="bfloat16", device="cpu")
    together = llm.generate(prompts, params)
    network = ModelConfig.from_folder(tmp_path).network
    assert llm.report["memory"]["weights"] >= network.num_bytes(2)
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
