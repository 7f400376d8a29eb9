"""Residency: when a sequence held which blocks, as a run's log tells it to whoever reads it."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.values.preemption_mode import PreemptionMode


class Replaced(NamedTuple):
    """A block that a sequence held at `position` until it got one of its own to write to."""

    position: int
    block_id: int
    begin: int
    end: int
    found: bool


@dataclass(slots=True)
class Residency:
    """A sequence's time in the pool, from admission until it ends or gives way.

    `block_ids` is its block table and `begins` the step in which each of them was taken; the first
    `num_found` were there with their content. `end` is the first step in which it held nothing,
    None if it still does.
    """

    row: int
    sample: int
    num_found: int
    block_ids: "array[int]" = field(default_factory=lambda: array("i"))
    begins: "array[int]" = field(default_factory=lambda: array("i"))
    replaced: list[Replaced] = field(default_factory=list)
    end: int | None = None

    def __len__(self) -> int:
        return len(self.block_ids) + len(self.replaced)


class Preemption(NamedTuple):
    """A sequence that gave way: what it had, and whose need for how many blocks was the cause."""

    step: int
    row: int
    sample: int
    mode: PreemptionMode
    num_tokens: int
    num_blocks: int
    for_row: int
    num_needed: int
    num_free: int


class Residencies(Protocol):
    """All residencies of a run, those of every `row_stride`-th row where they are too many."""

    row_stride: int
    preemptions: Decimated[Preemption]

    def __iter__(self) -> Iterator[Residency]: ...
