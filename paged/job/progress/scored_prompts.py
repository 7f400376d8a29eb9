"""ScoredPrompts: how well the model foretells the prompts whose log-probabilities are asked for."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pagedrun.paged.report.record.report_sections import ScoredPromptFigures
from pagedrun.paged.values.logprobs import TokenLogprob


@dataclass(slots=True)
class ScoredPrompts:
    """Prompts and their tokens, the first of each left out, and the sum of log-probabilities."""

    num_rows: int = 0
    num_tokens: int = 0
    logprob: float = 0.0

    def add(self, tokens: Iterable[TokenLogprob | None]) -> None:
        """Count a prompt."""
        known = [token.logprob for token in tokens if token is not None]
        self.num_rows += 1
        self.num_tokens += len(known)
        self.logprob += sum(known)

    def to_dict(self) -> ScoredPromptFigures | None:
        """Return the report's `scored_prompts`; None if there is nothing to tell.

        The perplexity is null where it is past what a float holds.
        """
        if not self.num_tokens:
            return None
        perplexity: float | None
        try:
            perplexity = math.exp(-self.logprob / self.num_tokens)
        except OverflowError:
            perplexity = None
        return {
            "rows": self.num_rows,
            "tokens": self.num_tokens,
            "logprob": self.logprob,
            "perplexity": perplexity,
        }
