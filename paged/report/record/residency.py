"""Residency: when a sequence held which blocks, as a run's log tells it to whoever reads it."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.values.engine_config import PreemptionMode


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

    `block_ids` is its block table, `begins` the step in which each of them was taken, and `found`
    whether it was there with its content. `end` is the first step in which it held nothing, None if
    it still does. Of beams, one that forks when another dies goes on with the residency of that.
    """

    row: int
    sample: int
    block_ids: "array[int]" = field(default_factory=lambda: array("i"))
    begins: "array[int]" = field(default_factory=lambda: array("i"))
    found: bytearray = field(default_factory=bytearray)
    replaced: list[Replaced] = field(default_factory=list)
    end: int | None = None

    def __len__(self) -> int:
        return len(self.block_ids) + len(self.replaced)

    def take(self, block_ids: Sequence[int], step: int, *, found: bool) -> None:
        """Note blocks that come to the end of the table in a step."""
        self.block_ids.extend(block_ids)
        self.begins.extend([step] * len(block_ids))
        self.found.extend([found] * len(block_ids))

    def give(self, position: int, step: int) -> None:
        """Note that the block at `position` is given up in a step; another takes its place."""
        self.replaced.append(
            Replaced(
                position,
                self.block_ids[position],
                self.begins[position],
                step,
                bool(self.found[position]),
            )
        )


class Branching(NamedTuple):
    """What became of the beams of a row behind a step: `forked` began on the blocks of others,
    `died` gave theirs back, of which `freed` had no other holder."""

    step: int
    row: int
    forked: int
    died: int
    freed: int


class Shortage(NamedTuple):
    """A sequence of `for_row` needed so many blocks, more than were free."""

    for_row: int
    num_needed: int
    num_free: int


class Preemption(NamedTuple):
    """A sequence that gave way: what it had, and the cause."""

    step: int
    row: int
    sample: int
    mode: PreemptionMode
    num_tokens: int
    num_blocks: int
    cause: Shortage


class Residencies(Protocol):
    """All residencies of a run, those of every `row_stride`-th row where they are too many."""

    row_stride: int
    branchings: list[Branching]
    preemptions: Decimated[Preemption]

    def __iter__(self) -> Iterator[Residency]: ...
