"""How far two outcomes agree."""

from collections.abc import Sequence as Seq
from itertools import zip_longest

import numpy as np

from pagedrun.paged.bench.accuracy.accuracy_figures import (
    AnswerAgreement,
    FirstDifference,
    TextAgreement,
)
from pagedrun.paged.bench.accuracy.outcome import Answer, Scores


def text_agreement(measured: Scores, reference: Scores) -> TextAgreement:
    """Return how far the scores of the same tokens agree."""
    differences = np.abs(measured.logprobs - reference.logprobs)
    return {
        "tokens": len(differences),
        "same_top": int((measured.top == reference.top).sum()),
        "mean_difference": float(differences.mean()),
        "largest_difference": float(differences.max()),
    }


def answer_agreement(
    measured: Seq[Answer], reference: Seq[Answer], near_tie: float
) -> AnswerAgreement:
    """Return how far the answers to the same prompts agree.

    A first difference is a near tie where the reference's likeliest token is less than `near_tie`
    ahead of its second.
    """
    differences: list[FirstDifference] = []
    num_before = 0
    for prompt, (mine, theirs) in enumerate(zip(measured, reference, strict=True)):
        place = _first_difference(mine.token_ids, theirs.token_ids)
        num_before += len(theirs.token_ids) if place is None else place
        if place is not None:
            has_both = place < min(len(mine.token_ids), len(theirs.token_ids))
            gap = theirs.gaps[place] if has_both else None
            differences.append({"prompt": prompt, "position": place, "gap": gap})
    return {
        "prompts": len(reference),
        "same": len(reference) - len(differences),
        "positions": sum(len(answer.token_ids) for answer in reference),
        "positions_before": num_before,
        "near_tie": near_tie,
        "near_ties": sum(
            each["gap"] is not None and each["gap"] < near_tie for each in differences
        ),
        "differences": differences,
    }


def _first_difference(mine: Seq[int], theirs: Seq[int]) -> int | None:
    """Return the first place at which answers differ, or one has ended; None if there is none."""
    pairs = enumerate(zip_longest(mine, theirs))
    return next((place for place, (ours, other) in pairs if ours != other), None)
