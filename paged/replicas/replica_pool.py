"""ReplicaPool: the replicas of a job, wherever they are; what the driver asks of them."""

from collections.abc import Sequence as Seq
from typing import Protocol

from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.replicas.replica_events import ReplicaEvent
from pagedrun.paged.replicas.run_terms import RunTerms

Heard = tuple[int, ReplicaEvent]
"""The number of a replica, and what came from it."""


class ReplicaPool(Protocol):
    """Replicas by their numbers, none of which is given twice. No method but `events` waits.

    What is sent to a replica that is no more is lost, and nothing is heard of it any more.
    """

    @property
    def num_wanted(self) -> int:
        """How many are meant to run at once."""

    def add(self) -> int:
        """Ask for another replica; it loads its model when there is room for it."""

    def begin(self, replica: int, terms: RunTerms) -> None:
        """Send the terms of the run, before the first unit."""

    def feed(self, replica: int, number: int, part: PlanPart) -> None:
        """Send a unit, by its number."""

    def end(self, replica: int) -> None:
        """Say that no unit follows."""

    def kill(self, replica: int) -> None:
        """End a replica at once."""

    def events(self, timeout_s: float) -> Seq[Heard]:
        """Return what has come, as soon as there is something; nothing after `timeout_s`."""

    def close(self) -> None:
        """End all of them, and what was started for them."""
