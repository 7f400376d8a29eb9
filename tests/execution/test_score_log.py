"""Log-probabilities of answers: one of each of their tokens, and numbers that JSON has."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch

from pagedrun.paged.execution.device import HostCopy
from pagedrun.paged.execution.score_log import ScoreLog
from pagedrun.paged.execution.step_result import HostLogprobs
from pagedrun.paged.values.logprobs import IMPOSSIBLE, TokenLogprob
from pagedrun.paged.values.request import FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.made_step import MadeChunk, made_step

DRAWN = 5


def logged(
    params: SamplingParams, answer: Sequence[int], top: Sequence[tuple[int, float]]
) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of an answer behind whose prompt `DRAWN` was drawn.

    top: the most likely tokens there, with their log-probabilities.
    """
    log = ScoreLog(str)
    log.begin(Request(0, (1, 2), params))
    chunk = MadeChunk((1, 2), (), [0], 0, 2, params=(("logprobs", params.logprobs),))
    ids, logprobs = (torch.tensor([each]) for each in zip(*top, strict=True))
    parts = (torch.tensor([-0.5]), torch.tensor([2]), ids, logprobs)
    found = HostLogprobs(tuple(map(HostCopy, parts)))
    log.note_draws(made_step(chunk).draws, found, np.array([DRAWN]), np.array([True]))
    output = log.scored(SampleOutput(0, "", tuple(answer), FinishReason.LENGTH), 0)
    assert output.logprobs is not None
    return output.logprobs


def test_an_answer_has_no_more_log_probabilities_than_tokens() -> None:
    """With `max_tokens` 0 a token is drawn that is none of the answer."""
    for answer in ([], [DRAWN]):
        params = SamplingParams(logprobs=1, prompt_logprobs=0, max_tokens=len(answer))
        found = logged(params, answer, [(4, -0.25)])
        assert [each.token_id for each in found] == answer


def test_the_likeliest_tokens_may_be_impossible() -> None:
    """Where the logits allow fewer tokens than are asked for."""
    [found] = logged(SamplingParams(logprobs=3), [DRAWN], [(4, -0.25), (0, -np.inf), (1, -np.inf)])
    assert [each.logprob for each in found.top] == [-0.25, IMPOSSIBLE, IMPOSSIBLE]
    json.dumps(asdict(found), allow_nan=False)
