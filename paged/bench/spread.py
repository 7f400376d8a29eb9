"""Spread: several measurements of one thing, or of the ratio of two, taken in turns."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypedDict


class SpreadFigures(TypedDict):
    """As `Spread`."""

    median: float
    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle, the mean, the least and the most of `count` measurements."""

    median: float
    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Return the spread of the values, None if there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(median(ordered), fmean(ordered), ordered[0], ordered[-1], len(ordered))

    @classmethod
    def of_ratios(
        cls, numerators: Seq[float | None], denominators: Seq[float | None]
    ) -> "Spread | None":
        """Return the spread of the ratios of pairs; pairs with nothing measured are left out."""
        pairs = zip(numerators, denominators, strict=True)
        return cls.of(above / below for above, below in pairs if above is not None and below)

    def to_dict(self) -> SpreadFigures:
        """Return the fields, as a result states them."""
        return {
            "median": self.median,
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "count": self.count,
        }
