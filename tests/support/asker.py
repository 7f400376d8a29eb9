"""A sample that asks for penalties and the like, and what its logits have to become."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True)
class Asker:
    """A sample: of which row, what was asked, and its answer so far."""

    row: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    params: dict[str, Any]
    bad_words: tuple[tuple[int, ...], ...] = ()
    sample: int = 0
    n: int = 1

    @property
    def request(self) -> Request:
        words = tuple(f"word {index}" for index in range(len(self.bad_words)))
        params = SamplingParams(n=self.n, bad_words=words, **self.params)
        return Request(self.row, self.prompt, params, self.bad_words)


def expected(logits: Tensor, request: Request, answer: tuple[int, ...]) -> Tensor:
    """Return one row's logits by Transformers' processors, and by the definition of the others."""
    params, vocab_size = request.params, len(logits)
    history = torch.tensor([[*request.prompt_token_ids, *answer]])
    so_far = torch.tensor([answer], dtype=torch.int64)
    scores = logits.clone().unsqueeze(0)
    if params.allowed_token_ids is not None:
        allowed = torch.zeros(vocab_size, dtype=torch.bool)
        allowed[list(params.allowed_token_ids)] = True
        scores = scores.masked_fill(~allowed, -torch.inf)
    if request.bad_words_ids:
        words = [list(word) for word in request.bad_words_ids]
        scores = NoBadWordsLogitsProcessor(words)(so_far, scores)
    if params.logit_bias:
        biases = {(token_id,): bias for token_id, bias in params.logit_bias}
        scores = SequenceBiasLogitsProcessor(biases)(so_far, scores)
    if params.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(history, scores)
    counts = torch.bincount(so_far[0], minlength=vocab_size)
    scores = scores - params.frequency_penalty * counts
    return (scores - params.presence_penalty * (counts > 0))[0]
