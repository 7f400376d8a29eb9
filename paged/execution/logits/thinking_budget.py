"""ThinkingBudget: the processor of logits that closes a thought when it is long enough."""

import torch
from torch import Tensor

from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.reasoning import ThoughtBudget
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import Request


class ThinkingBudget:
    """Forces the closing tag, token by token, behind the `thinking_budget` tokens of a thought.

    Which tokens a thought has only the host knows: a row is waited for until its thought ends.
    """

    needs_newest_token = True
    can_be_captured = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts = AnswerText(tokenizer)
        # By row and sample, while they last.
        self._thoughts: dict[int, dict[int, ThoughtBudget]] = {}

    def begin(self, request: Request) -> None:
        """Watch the samples of a request that has a budget."""
        self.end(request.index)
        budget = request.params.thinking_budget
        if budget is None:
            return
        budgets: dict[int, ThoughtBudget] = {}
        for sample in range(request.params.n):
            thought = self._texts.thought(request)
            if thought is not None:
                closing = self._texts.closing(request.params)
                budgets[sample] = ThoughtBudget(thought, closing, budget)
        if budgets:
            self._thoughts[request.index] = budgets

    def end(self, row: int) -> None:
        """Forget the request."""
        self._thoughts.pop(row, None)

    def applies(self, draws: Draws) -> bool:
        """Return whether a thought goes on, or may begin."""
        return bool(self._thoughts) and any(
            sample in self._thoughts.get(row, ()) for row, sample in _names(draws.row, draws.sample)
        )

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Follow the thoughts."""
        if not self._thoughts:
            return
        for (row, sample), token in zip(_names(rows, samples), tokens.tolist(), strict=True):
            thoughts = self._thoughts.get(row, {})
            if sample in thoughts and not thoughts[sample].take(token):
                del thoughts[sample]

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Leave a thought without budget one token."""
        draws = batch.draws
        assert draws is not None
        for place, (row, sample) in enumerate(_names(draws.row, draws.sample)):
            thought = self._thoughts.get(row, {}).get(sample)
            if thought is not None and thought.forced is not None:
                logits[place] = -torch.inf
                logits[place, thought.forced] = 0.0
        return logits


def _names(rows: Int64s, samples: Int64s) -> list[tuple[int, int]]:
    return list(zip(rows.tolist(), samples.tolist(), strict=True))
