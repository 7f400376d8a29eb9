"""Rules for choosing the experts of a token, and their weights, from router logits.

Without torch: descriptions of models hold them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Score(StrEnum):
    """Weights that add up to 1 over all experts, over the chosen ones, or each by itself."""

    SOFTMAX = "softmax"
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The `num_chosen` experts with the largest scores, the lowest number first among equal ones.

    Their weights are the scores, divided by their sum (and `sum_eps`) if `normalize`, times
    `scaling`. Where experts come in `num_groups` of one size, side by side, only those of the
    `num_chosen_groups` whose two largest scores add up to most can be chosen.
    """

    num_chosen: int
    score: Score
    normalize: bool = False
    sum_eps: float = 0.0
    scaling: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1

    def by_scores(self, is_corrected: bool) -> bool:
        """Return whether scores decide, not logits: all scores rise with these, but sums do not.

        `is_corrected`: something is added to the scores before they are compared. A softmax of the
        chosen has no scores before the choice; there the logits are what is compared.
        """
        is_compared = is_corrected or self.num_groups > 1
        return is_compared and self.score is not Score.SOFTMAX_OF_CHOSEN
