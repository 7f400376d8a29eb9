"""Answers of Transformers, and comparison of a model's tokens with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from pagedrun import SamplingParams
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from tests.support.engines import load_engine

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


# By a name, a model, and optionally the lengths of its prompts.
MakeOracle = Callable[..., Oracle]


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
