"""A step as the tests look at it: its chunks one by one, with their sequences."""

from dataclasses import dataclass
from typing import NamedTuple

from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_input import StepInput


class Chunk(NamedTuple):
    """A chunk of a step, with its sequence as it is behind the step."""

    sequence: Sequence
    start: int
    end: int
    store_from: int
    samples: bool


@dataclass(frozen=True)
class Step:
    """A step that was done: what was computed, chunk by chunk, and what was moved before."""

    input: StepInput
    chunks: list[Chunk]

    @classmethod
    def of(cls, made: StepInput, scheduler: Scheduler) -> "Step":
        by_uid = {int(scheduler.table.uid[each.row_index]): each for each in scheduler.running}
        columns = (made.uids, made.starts, made.ends, made.store_from, made.samples)
        chunks = zip(*(column.tolist() for column in columns), strict=True)
        return cls(made, [Chunk(by_uid[uid], *rest) for uid, *rest in chunks])
