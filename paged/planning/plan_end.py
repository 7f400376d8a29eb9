"""PlanEnd: where a plan ends, for the one that follows it in the same pool."""

from dataclasses import dataclass

from pagedrun.paged.values.branch_point import BranchPoint
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class PlanEnd:
    """What the next plan needs to know of the one before: its window's number, the request
    that runs last, whose prefix may still be there, and where on that states are kept."""

    window: int
    last_request: Request | None
    state_points: BranchPoint | None = None
