"""Workload: rows of random tokens with shared beginnings, the same ones every time."""

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from pagedrun.paged.bench.runs.lengths import Lengths, TokenCount
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


class WorkloadFigures(TypedDict):
    """As `Workload`."""

    rows: int
    shared: int
    unique: TokenCount
    output: TokenCount
    group_size: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows` prompts of `shared` + `unique` tokens, each answered with `output` tokens.

    `unique` and `output` are a number, or `Lengths` from which every row draws its own.
    `group_size` rows begin with the same `shared` tokens, then the next group with others; None:
    all rows are one group. Raises `UsageError` naming the flag for a value out of range.
    """

    rows: int
    shared: int
    unique: int | Lengths
    output: int | Lengths
    group_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # Without a token of their own, rows of a group would be one row.
        for name, low in (("rows", 1), ("shared", 0), ("unique", 1), ("output", 2)):
            value = Lengths.of(getattr(self, name)).low
            if value < low:
                raise UsageError(f"{option(name)} is {value}; it must be at least {low}")

    @property
    def prompt_tokens(self) -> float:
        """Tokens of one prompt, on average."""
        return self.shared + Lengths.of(self.unique).mean

    @property
    def has_one_length(self) -> bool:
        """Whether all rows have as many tokens as each other, and get as many."""
        return Lengths.of(self.unique).is_fixed and Lengths.of(self.output).is_fixed

    def warm_up(self) -> "Workload":
        """Return a part of this that takes a moment, and still needs every kernel of the whole.

        It is as wide and as long as those kernels ask for that only work on what many rows share.
        """
        return replace(
            self,
            rows=min(self.rows, 16),
            shared=min(self.shared, 512),
            unique=Lengths.of(self.unique).at_most(8),
            output=Lengths.of(self.output).at_most(3),
            seed=self.seed + 1,  # other tokens
        )

    def requests(self, vocab_size: int) -> list[Request]:
        """Return the rows; ids are drawn evenly from the whole vocabulary."""
        # Lengths from a stream of their own: rows of one length are the same rows as ever.
        lengths = np.random.default_rng([self.seed, 1])
        uniques = Lengths.of(self.unique).draw(lengths, self.rows)
        outputs = Lengths.of(self.output).draw(lengths, self.rows)
        random = np.random.default_rng(self.seed)
        group_size = self.group_size or self.rows
        requests: list[Request] = []
        for index, (num_unique, max_tokens) in enumerate(zip(uniques, outputs, strict=True)):
            if index % group_size == 0:
                shared = tuple(random.integers(vocab_size, size=self.shared).tolist())
            unique = tuple(random.integers(vocab_size, size=num_unique).tolist())
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            requests.append(Request(index, shared + unique, params))
        return requests

    def to_dict(self) -> WorkloadFigures:
        """Return the fields, as a result states them."""
        return {
            "rows": self.rows,
            "shared": self.shared,
            "unique": Lengths.of(self.unique).to_dict(),
            "output": Lengths.of(self.output).to_dict(),
            "group_size": self.group_size,
            "seed": self.seed,
        }
