"""Workload: rows of random tokens with shared beginnings, the same ones every time."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pagedrun.paged.errors import UsageError
from pagedrun.paged.request import Request
from pagedrun.paged.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows` prompts of `shared` + `unique` tokens, each answered with `output` tokens.

    `group_size` rows begin with the same `shared` tokens, then the next group with others; None:
    all rows are one group. Raises `UsageError` naming the flag for a value out of range.
    """

    rows: int
    shared: int
    unique: int
    output: int
    group_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # Without a token of their own, rows of a group would be one row.
        for name, low in (("rows", 1), ("shared", 0), ("unique", 1), ("output", 2)):
            value = getattr(self, name)
            if value < low:
                raise UsageError(f"--{name} is {value}; it must be at least {low}")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of one prompt."""
        return self.shared + self.unique

    def warm_up(self) -> "Workload":
        """Return a part of this that takes a moment, and still needs every kernel of the whole.

        It is as wide and as long as those kernels ask for that only work on what many rows share.
        """
        return replace(
            self,
            rows=min(self.rows, 16),
            shared=min(self.shared, 512),
            unique=min(self.unique, 8),
            output=min(self.output, 3),
            seed=self.seed + 1,  # other tokens
        )

    def requests(self, vocab_size: int) -> list[Request]:
        """Return the rows; ids are drawn evenly from the whole vocabulary."""
        random = np.random.default_rng(self.seed)
        params = SamplingParams(max_tokens=self.output, ignore_eos=True)
        group_size = self.group_size or self.rows
        requests: list[Request] = []
        for index in range(self.rows):
            if index % group_size == 0:
                shared = tuple(random.integers(vocab_size, size=self.shared).tolist())
            unique = tuple(random.integers(vocab_size, size=self.unique).tolist())
            requests.append(Request(index, shared + unique, params))
        return requests

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as a result states them."""
        return asdict(self)
