"""ClippedSwiglu: the activation of gpt-oss, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClippedSwiglu:
    """`(up + 1) * gate * sigmoid(alpha * gate)`; gates are at most `limit`, ups within ±limit."""

    limit: float
    alpha: float
