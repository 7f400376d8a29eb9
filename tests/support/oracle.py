"""Logits of Transformers behind each token of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Oracle:
    """A model of Transformers, its folder, and prompts.

    seen: logits by answers, of those that were asked for before.
    """

    model: Any
    folder: Path
    prompts: list[list[int]]
    seen: dict[tuple[tuple[int, ...], ...], list[torch.Tensor]] = field(default_factory=dict)

    @torch.inference_mode()
    def logits(self, answers: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Return the logits of each prompt's answer, [num_tokens, vocab_size], in one pass.

        Tokens see none behind them, so that rows may be filled up.
        """
        key = tuple(answers)
        if key not in self.seen:
            pairs = list(zip(self.prompts, answers, strict=True))
            rows = [[*prompt, *answer] for prompt, answer in pairs]
            longest = max(map(len, rows))
            filled = [[*row, *[0] * (longest - len(row))] for row in rows]
            logits = self.model(torch.tensor(filled), use_cache=False).logits
            self.seen[key] = [
                logits[row, len(prompt) - 1 : len(prompt) + len(answer) - 1].clone()
                for row, (prompt, answer) in enumerate(pairs)
            ]
        return self.seen[key]
