"""The engine against Transformers: the same tokens, greedy and in float32, however it runs.

In the default run each model takes some of the ways to run, and each way some of the models: that
one model answers alike in all ways is what test_reproducible.py is for.
"""

from typing import Any

import pytest
import torch
import transformers

from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair, long_except
from tests.support.oracle import Oracle

NUM_GENERATED = 20  # into the next block of 16 from anywhere
VOCAB = 256  # ids of plain bytes; the models' special ids stay out of the prompts
# Lengths 1, block − 1, block, block + 1, 2 · block, 3 · block + 7 for blocks of 16, 64 and 256.
LENGTHS = sorted({1, 600} | {n for b in (16, 64, 256) for n in (b - 1, b, b + 1, 2 * b, 3 * b + 7)})

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-mha-untied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama-gqa-tied-llama3": (
        "llama",
        {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama-biased-linear": (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        },
    ),
    "mistral-window": ("mistral", {"num_key_value_heads": 2, "sliding_window": 100}),
    "mistral-full": ("mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    "qwen2-gqa-tied": ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2-window-upper-layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 50, "max_window_layers": 1},
    ),
    "qwen3-gqa": ("qwen3", {"num_key_value_heads": 2, "tie_word_embeddings": False}),
    "qwen3-mqa-yarn-tied": (
        "qwen3",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": YARN_ROPE},
    ),
}
# For one sequence at a time in the default run.
TELLING = ["mistral-window"]


@pytest.fixture
def oracle(
    request: pytest.FixtureRequest, make_model: MakeModel, oracles: dict[str, Oracle]
) -> Oracle:
    if request.param in oracles:
        return oracles[request.param]
    family, overrides = MODELS[request.param]
    folder = make_model(family, request.param, max_position_embeddings=1024, **overrides)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(VOCAB, (max(LENGTHS),), generator=generator).tolist()
    # Every length is a prefix of the longest, so that the cache has work; half of them twice,
    # with another ending, so that the last block is not the same.
    prompts = [shared[:length] for length in LENGTHS]
    prompts += [[*shared[: length - 1], 7] for length in LENGTHS[::2]]
    return oracles.setdefault(request.param, Oracle(model, folder, prompts))


def _check(oracle: Oracle, policy: RunPolicy = DEFAULT_POLICY, **engine: Any) -> Any:
    config = EngineConfig(model=oracle.folder, dtype="float32", **engine)
    params = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True)
    requests = [Request(i, tuple(prompt), params) for i, prompt in enumerate(oracle.prompts)]
    run = load_engine(config, policy).start(requests)
    completions = sorted(run, key=lambda completion: completion.request.index)
    assert [each.error for each in completions] == [None] * len(requests)
    answers = [each.outputs[0].token_ids for each in completions]
    for prompt, answer, logits in zip(oracle.prompts, answers, oracle.logits(answers), strict=True):
        assert len(answer) == NUM_GENERATED
        # Greedy: each token is the likeliest behind those before it.
        assert list(answer) == logits.argmax(-1).tolist(), f"prompt of {len(prompt)} tokens"
    return run.report()


@every_pair(
    "oracle",
    in_turn="oracle",
    oracle=[*MODELS],
    block_size=[16, 64, 256],
    prefix_caching=[True, False],
    chunk=[2048, 37],
)
def test_tokens_equal_transformers(
    oracle: Oracle, block_size: int, prefix_caching: bool, chunk: int
) -> None:
    report = _check(
        oracle,
        block_size=block_size,
        prefix_caching=prefix_caching,
        max_num_batched_tokens=chunk,
        max_num_seqs=len(oracle.prompts),
    )
    assert (report["prefix"]["hit_tokens"] > 0) == prefix_caching


@every_pair(
    "oracle",
    in_turn="oracle",
    oracle=[*MODELS],
    block_size=[16, 64, 256],
    mode=["swap", "recompute"],
)
def test_tokens_equal_transformers_when_preempted(
    oracle: Oracle, block_size: int, mode: str
) -> None:
    needed = -(-(max(LENGTHS) + NUM_GENERATED) // block_size)
    report = _check(
        oracle,
        RunPolicy(AdmitAll),  # so that somebody must give way
        block_size=block_size,
        num_blocks=needed + 2,
        preemption_mode=mode,
        speculate="off",  # drafts follow measured times
        max_num_batched_tokens=301,
        prefix_caching=False,
    )
    if block_size == 16:  # larger blocks grow too rarely for sequences to collide
        assert report["preemptions"][mode] > 0


@pytest.mark.parametrize("oracle", long_except(MODELS, TELLING), indirect=True)
def test_a_single_sequence_at_a_time_gives_the_same_tokens(oracle: Oracle) -> None:
    _check(oracle, max_num_seqs=1, max_num_batched_tokens=64)
