"""NormalLengths: how long requests get, drawn from a normal distribution and clipped."""

from dataclasses import dataclass

import numpy as np

from pagedrun.paged.bench.memory.memory_figures import LengthRange
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class NormalLengths:
    """Whole tokens around `mean`, spread by `std`, none below `low` and none above `high`.

    Raises `UsageError` naming the flag for a range that holds nothing.
    """

    mean: float = 500.0
    std: float = 200.0
    low: int = 200
    high: int = 2048

    def __post_init__(self) -> None:
        if self.low < 1:
            raise UsageError(f"{option('min_len')} is {self.low}; it must be at least 1")
        if self.low > self.high:
            raise UsageError(
                f"{option('min_len')} {self.low} is more than {option('max_len')} {self.high}"
            )
        for flag, value in ((option("mean"), self.mean), (option("std"), self.std)):
            if not 0 <= value < float("inf"):
                raise UsageError(f"{flag} is {value}; it must be a number of at least 0")

    def draw(self, seed: int, count: int) -> list[int]:
        """Return a length for each of `count` requests; of more, the first ones are the same."""
        drawn = np.random.default_rng(seed).normal(self.mean, self.std, count)
        lengths: list[int] = np.clip(drawn, self.low, self.high).astype(np.int64).tolist()
        return lengths

    def to_dict(self) -> LengthRange:
        """Return the fields, as a result states them."""
        return {"mean": self.mean, "std": self.std, "low": self.low, "high": self.high}
