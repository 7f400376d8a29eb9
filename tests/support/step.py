"""A step as the tests look at it: its chunks one by one, with their sequences."""

from dataclasses import dataclass
from typing import NamedTuple

from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_input import StepInput


class Chunk(NamedTuple):
    """A chunk of a step, with its sequence as it is behind the step; of a draft with it and those
    before it."""

    sequence: Sequence
    start: int
    end: int
    store_from: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """The tokens up to its end."""
        return [*self.sequence.token_ids(0, self.end - len(self.drafts)), *self.drafts]


@dataclass(frozen=True)
class Step:
    """A step that was done: what was computed, chunk by chunk, and what was moved before."""

    input: StepInput
    chunks: list[Chunk]

    @classmethod
    def of(cls, made: StepInput, scheduler: Scheduler) -> "Step":
        by_uid = {int(scheduler.table.uid[each.row_index]): each for each in scheduler.running}
        drafts: dict[int, tuple[int, ...]] = {}  # by chunk
        for each in made.drafts:
            for index in range(len(each.tokens)):
                chunk = int(made.draws.chunk[each.first_draw + index])
                by_uid[int(made.uids[chunk])] = by_uid[each.uid]
                drafts[chunk] = each.tokens[: index + 1]
        columns = (made.uids, made.starts, made.ends, made.store_from, made.samples)
        chunks = enumerate(zip(*(column.tolist() for column in columns), strict=True))
        return cls(
            made,
            [
                Chunk(by_uid[uid], start, end, store_from, samples, drafts.get(index, ()))
                for index, (uid, start, end, store_from, samples) in chunks
            ],
        )
