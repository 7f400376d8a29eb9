"""WindowPlan: what a run asks of a plan, of a whole window or of a part of one."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Protocol

from pagedrun.paged.planning.duplicates import Duplicates
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.planned_sharing import PlannedSharing
from pagedrun.paged.values.request import Completion, Request


class WindowPlan(Protocol):
    """Requests in run order, and those of the window that do not run."""

    @property
    def duplicates(self) -> Duplicates:
        """Who else is answered with what a request gets."""

    @property
    def sharing(self) -> PlannedSharing:
        """What the requests have in common."""

    @property
    def too_large(self) -> Seq[Request]:
        """Those that the pool cannot hold."""

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of those that run, and of those that ask the same."""

    @property
    def num_copied(self) -> int:
        """Requests that an earlier run has answered."""

    def copied(self) -> Iterator[Completion]:
        """Yield what an earlier run has answered to these."""

    def __len__(self) -> int:
        """Return how many run."""

    def __iter__(self) -> Iterator[PlannedRequest]:
        """Yield those that run, in their order."""
