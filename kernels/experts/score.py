"""Score: what a router's logits become."""

from enum import StrEnum


class Score(StrEnum):
    """Weights that add up to 1 over all experts, over the chosen ones, or each by itself."""

    SOFTMAX = "softmax"
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"
    SIGMOID = "sigmoid"
