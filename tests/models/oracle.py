"""Answers of Transformers, and comparison of a model's tokens with them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pagedrun import SamplingParams
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request, SampleOutput
from tests.support.engines import load_engine
from tests.support.oracle import Oracle

NUM_TOKENS = 24
# Around the borders of blocks of 16, of windows of 50, and of chunks of 64.
LENGTHS = (1, 7, 15, 16, 17, 49, 50, 51, 63, 64, 65, 130, 200)
CLOSE = 1e-4  # first logits; a margin ten times as large decides between two tokens
TIE = 1e-3
NUM_TOP = 20


# By a name, a model, and optionally the lengths of its prompts.
MakeOracle = Callable[..., Oracle]


def oracle_of(model: Any, folder: Path, lengths: Sequence[int] = LENGTHS) -> Oracle:
    """Return the oracle of a model with prompts of these lengths that begin alike."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(256, (max(lengths),), generator=generator).tolist()
    return Oracle(model, folder, [shared[:length] for length in lengths])


def check(
    oracle: Oracle, policy: RunPolicy = DEFAULT_POLICY, *, min_distinct: int = 16, **engine: Any
) -> Any:
    config = EngineConfig(model=oracle.folder, dtype="float32", device="cpu", **engine)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=NUM_TOP)
    requests = [Request(i, tuple(prompt), params) for i, prompt in enumerate(oracle.prompts)]
    run = load_engine(config, policy).start(requests)
    found: dict[int, SampleOutput] = {}
    for done in run:
        assert done.error is None
        found[done.request.index] = done.outputs[0]
    answers = [found[index] for index in range(len(requests))]
    expected = oracle.logits([answer.token_ids for answer in answers])
    said = set()
    for prompt, answer, logits in zip(oracle.prompts, answers, expected, strict=True):
        top = logits.topk(2)
        for step, token in enumerate(answer.token_ids):
            if top.values[step, 0] - top.values[step, 1] <= TIE:
                break  # two programs may differ from here on
            assert token == top.indices[step, 0], f"prompt of {len(prompt)} tokens, answer {step}"
            said.add(token)
        # Log-probabilities are logits less one number: what a cap or a factor does shows in them.
        likely = logits[0].log_softmax(-1)
        assert answer.logprobs is not None
        for each in answer.logprobs[0].top:
            assert abs(likely[each.token_id].item() - each.logprob) < CLOSE
    assert len(said) >= min_distinct, "it says one thing"
    return run.report()
