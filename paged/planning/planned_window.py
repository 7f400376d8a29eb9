"""PlannedWindow: what a run takes up at a time."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Generic, TypeVar

from pagedrun.paged.planning.window_plan import WindowPlan
from pagedrun.paged.report.record.snapshot_tables import PrefixNodes
from pagedrun.paged.values.request import Completion

P_co = TypeVar("P_co", bound=WindowPlan, covariant=True)


@dataclass(frozen=True, slots=True)
class PlannedWindow(Generic[P_co]):
    """Requests that were planned together, and those that cannot be run.

    `prefixes` is the tree of what they share; `plan_s` is how long it took to plan them, in
    seconds.
    """

    plan: P_co
    refused: Seq[Completion]
    prefixes: PrefixNodes
    plan_s: float

    def unrun(self) -> Iterator[Completion]:
        """Yield the completions of those that do not run: refused, or answered by an earlier run,
        whose answers are read one by one.
        """
        yield from self.refused
        yield from self.plan.copied()

    def __len__(self) -> int:
        return (
            len(self.plan)
            + len(self.plan.too_large)
            + self.plan.num_copied
            + self.plan.duplicates.num_duplicates
            + len(self.refused)
        )
