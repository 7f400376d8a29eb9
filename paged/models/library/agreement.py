"""Whether a model gives over the paged cache what the library gives without it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pagedrun.paged.models.library.trial import Chunk, Trial, random_row

LENGTHS = (40, 15)  # of the rows that are compared
# Prompts in one chunk and in two, generated tokens beside a prompt and beside one another.
_STEPS = (
    (Chunk(0, 0, 20), Chunk(1, 0, 11)),
    (Chunk(0, 20, 37), Chunk(1, 11, 12, is_prompt=False)),
    *(
        (Chunk(0, 37 + i, 38 + i, is_prompt=False), Chunk(1, 12 + i, 13 + i, is_prompt=False))
        for i in range(3)
    ),
)
# The most that a token's logits may differ by, as a share of the largest: the order of summation
# differs. In 16 bits that holds for half of the tokens, since rounding may lead some to another
# expert, and so to other logits.
MAX_DIFFERENCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Disagreement(Exception):
    """A model gives other logits over the paged cache than without it."""


class Differences:
    """How far logits are from the expected ones, as a share of the largest of these.

    expected: of each row, [num_tokens, vocab_size] float32. where: what the others come from.
    """

    def __init__(self, expected: Sequence[Tensor], where: str, dtype: torch.dtype) -> None:
        self._expected = expected
        self._where = where
        self._dtype = dtype
        self._largest = max(float(each.abs().max()) for each in expected)
        self._found: dict[bool, list[Tensor]] = {True: [], False: []}  # of prompts, and generated

    def add(self, row: int, start: int, logits: Tensor, *, is_prompt: bool) -> None:
        """Compare logits [num_tokens, vocab_size] of a row's tokens from `start` on."""
        wanted = self._expected[row][start : start + len(logits)]
        self._found[is_prompt].append((logits - wanted).abs().amax(1).cpu() / self._largest)

    def largest(self) -> float:
        """Return the largest.

        Raises `Disagreement` if they differ by more than `MAX_DIFFERENCE`, for prompt tokens or
        for generated ones, or are not numbers.
        """
        of_kinds = [torch.cat(each) for each in self._found.values()]
        most = MAX_DIFFERENCE[self._dtype]
        for each in of_kinds:
            share = float(each.max() if self._dtype is torch.float32 else each.median())
            if not share <= most:  # nor if it is no number
                raise Disagreement(
                    f"its logits {self._where} differ from those of Transformers alone by "
                    f"{share:.2g} of the largest, where at most {most:g} is rounding"
                )
        return float(torch.cat(of_kinds).max())


@torch.inference_mode()
def expected_logits(causal_lm: Any, vocab_size: int) -> list[Tensor]:
    """Return the library's own logits of each row, computed without a cache and one by one.

    [num_tokens, vocab_size] each, float32.
    """
    ids = [random_row(row, length, vocab_size)[None] for row, length in enumerate(LENGTHS)]
    return [
        causal_lm(input_ids=each.to(causal_lm.device), use_cache=False)
        .logits[0, :, :vocab_size]
        .float()
        for each in ids
    ]


@torch.inference_mode()
def largest_difference(trial: Trial, expected: Sequence[Tensor]) -> float:
    """Return how far logits over paged memory are from the expected ones.

    Raises `Disagreement` where `Differences.largest` does.
    """
    differences = Differences(expected, "over paged memory", trial.model.dtype)
    for chunks in _STEPS:
        for chunk, hidden in zip(chunks, trial.hidden(chunks), strict=True):
            logits = trial.model.head(hidden).float()
            differences.add(chunk.row, chunk.start, logits, is_prompt=chunk.is_prompt)
    return differences.largest()
