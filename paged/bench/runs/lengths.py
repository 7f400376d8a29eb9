"""Lengths: how many tokens rows have, all of them the same or each its own."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np


class LengthRange(TypedDict):
    """As `Lengths`, both included."""

    low: int
    high: int


TokenCount = int | LengthRange  # of all rows, or the range that each draws its own from


@dataclass(frozen=True, slots=True)
class Lengths:
    """Any number of tokens from `low` to `high`, both included, each as likely as the others."""

    low: int
    high: int

    def __post_init__(self) -> None:
        assert self.low <= self.high, "an empty range"

    @classmethod
    def of(cls, tokens: "int | Lengths") -> "Lengths":
        """Return `tokens` itself, or the range that holds nothing else."""
        return tokens if isinstance(tokens, Lengths) else cls(tokens, tokens)

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have the same number."""
        return self.low == self.high

    @property
    def mean(self) -> float:
        """Tokens of a row on average."""
        return (self.low + self.high) / 2

    def at_most(self, tokens: int) -> "Lengths":
        """Return the range cut off above `tokens`."""
        return Lengths(min(self.low, tokens), min(self.high, tokens))

    def draw(self, random: np.random.Generator, rows: int) -> list[int]:
        """Return a number for each of so many rows."""
        drawn: list[int] = random.integers(self.low, self.high, size=rows, endpoint=True).tolist()
        return drawn

    def to_dict(self) -> TokenCount:
        """Return the one number, or the fields, as a result states them."""
        return self.low if self.is_fixed else {"low": self.low, "high": self.high}
