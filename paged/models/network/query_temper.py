"""QueryTemper: queries that grow with their position, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueryTemper:
    """Multiplies the query at position p by 1 + beta * ln(1 + floor(p / length)).

    So attention stays sharp over contexts longer than `length` tokens: Nakanishi 2025,
    "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399.
    """

    beta: float
    length: int
