"""PartPlanner: from the parts of a plan that one pool is given to planned windows of its run."""

import time

from pagedrun.paged.planning.plan_end import PlanEnd
from pagedrun.paged.planning.planned_window import PlannedWindow
from pagedrun.paged.planning.tree.prefix_nodes import part_nodes
from pagedrun.paged.planning.units.plan_part import PlanPart
from pagedrun.paged.planning.units.planned_part import PlannedPart


class PartPlanner:
    """Plans one part after the other, in the order in which they run in one pool.

    Any part may follow any other one: of another window, of rows that come earlier in the plan, of
    single rows. What the first row of a part finds is what it has in common with the last row of
    the part before, whose prompt is kept for it.
    """

    def __init__(self) -> None:
        self._after: PlanEnd | None = None

    def window(self, part: PlanPart, *, has_next: bool = True) -> PlannedWindow[PlannedPart]:
        """Plan the next part; `has_next` says whether another one may follow."""
        began = time.perf_counter()
        plan = PlannedPart(part, self._after, has_next=has_next)
        if len(plan):
            self._after = plan.end
        prefixes = part_nodes(part)
        return PlannedWindow(plan, (), prefixes, time.perf_counter() - began)
