"""Every family against Transformers: tokens, and the likelihoods of the first step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from tests.engines import load_engine
from tests.models.families import TINY, save_tiny
from tests.scheduling.admit_all import AdmitAll

NUM_TOKENS = 24
# Around the borders of blocks of 16, of windows of 50, and of chunks of 64.
LENGTHS = (1, 7, 15, 16, 17, 49, 50, 51, 63, 64, 65, 130, 200)
CLOSE = 1e-4  # first logits; a margin ten times as large decides between two tokens
TIE = 1e-3
NUM_TOP = 20


@dataclass(frozen=True)
class Oracle:
    """A folder, prompts, and what Transformers says of them.

    logits: [vocab_size] of each prompt's last token. tokens: of each prompt, up to the first whose
    choice was nearly a tie.
    """

    folder: Path
    prompts: list[list[int]]
    logits: list[torch.Tensor]
    tokens: list[list[int]]


@pytest.fixture(scope="module")
def make_oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    made: dict[str, Oracle] = {}

    def make(name: str) -> Oracle:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = ask(save_tiny(name, folder), folder)
        return made[name]

    return make


@torch.inference_mode()
def ask(model: Any, folder: Path, lengths: Sequence[int] = LENGTHS) -> Oracle:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(256, (max(lengths),), generator=generator).tolist()
    prompts = [shared[:length] for length in lengths]
    first, tokens = [], []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            generation_config=transformers.GenerationConfig(
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
        logits = torch.stack(out.logits)[:, 0]
        top = logits.topk(2).values
        sure = (top[:, 0] - top[:, 1] > TIE).tolist()
        num_sure = sure.index(False) if False in sure else NUM_TOKENS
        first.append(logits[0])
        tokens.append(out.sequences[0, len(prompt) :][:num_sure].tolist())
    return Oracle(folder, prompts, first, tokens)


def check(
    oracle: Oracle, policy: RunPolicy = DEFAULT_POLICY, *, min_distinct: int = 16, **engine: Any
) -> Any:
    config = EngineConfig(model=oracle.folder, dtype="float32", device="cpu", **engine)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=NUM_TOP)
    requests = [Request(i, tuple(prompt), params) for i, prompt in enumerate(oracle.prompts)]
    run = load_engine(config, policy).start(requests)
    for done in run:
        assert done.error is None
        index, answer = done.request.index, done.outputs[0]
        expected = oracle.tokens[index]
        found = list(answer.token_ids)[: len(expected)]
        assert found == expected, f"prompt of {len(oracle.prompts[index])} tokens"
        # Log-probabilities are logits less one number: what a cap or a factor does shows in them.
        likely = oracle.logits[index].log_softmax(-1)
        assert answer.logprobs is not None
        for top in answer.logprobs[0].top:
            assert abs(likely[top.token_id].item() - top.logprob) < CLOSE
    distinct = {token for answer in oracle.tokens for token in answer}
    assert len(distinct) >= min_distinct, "it says one thing"
    return run.report()


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
