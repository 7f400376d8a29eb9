"""Rules for choosing the experts of a token, and their weights, from router logits.

Without torch, for descriptions of models.
"""

from dataclasses import dataclass
from enum import StrEnum


class Score(StrEnum):
    """Normalization of weights: over all experts, over the chosen ones, or none."""

    SOFTMAX = "softmax"
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The `num_chosen` experts with the largest scores, the lowest number first among equal ones.

    Their weights are the scores, divided by their sum (and `sum_eps`) if `normalize`, times
    `scaling`. Where experts come in `num_groups` of one size, side by side, only those of the
    `num_chosen_groups` with the largest sums of two scores can be chosen.
    """

    num_chosen: int
    score: Score
    normalize: bool = False
    sum_eps: float = 0.0
    scaling: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1

    def by_scores(self, is_corrected: bool) -> bool:
        """Return True if scores are compared instead of logits.

        Scores increase with logits, but sums of scores do not. is_corrected: a correction is added
        before the comparison. SOFTMAX_OF_CHOSEN has no scores before the choice.
        """
        is_compared = is_corrected or self.num_groups > 1
        return is_compared and self.score is not Score.SOFTMAX_OF_CHOSEN
