"""Fault: something that is done to a job on a cluster in its middle, and what came of it."""

import time
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from tests.replicas.faults.watched_job import WatchedJob


class Kind(Enum):
    """What is done."""

    ACTOR = "Ray ends an actor"
    WORKER = "a replica's process is killed"
    FROZEN = "a replica's process is stopped until it counts as dead"
    NODE = "a node is lost, with its replica"
    RAYLET = "a node's raylet is killed, and nothing else"
    STOPPED = "a node is stopped for 2 to 4 seconds"
    ADDED = "a node is added"
    STORE = "all object stores and disks are full for some seconds"
    DRIVER = "the driver is killed, and the job resumed"


@dataclass
class Fault:
    """Struck at the time `at`, in the middle of `job`; `replicas` are those that it ends, if they
    have not ended before, and `num_others` run beside them. `waits` says whether a replica waits
    for room. `gone_at` is when the replicas of a killed driver were gone; `job` is then the resumed
    one."""

    kind: Kind
    job: WatchedJob
    replicas: list[int] = field(default_factory=list)
    num_others: int = 0
    waits: bool = False
    gone_at: float = 0.0
    at: float = field(default_factory=time.time)

    def figures(self) -> dict[str, float | None]:
        """Return in seconds after the fault: when the death was noticed, a row of the dead was
        answered by another and a new replica ran; and for how long no row came."""
        job, at = self.job, self.at
        if self.kind is Kind.DRIVER:
            first = min((each["at"] for each in job.of("row")), default=None)
            return {
                "noticed_s": self.gone_at - at,
                "went_on_s": None if first is None else first - at,
                "joined_s": None,
                "without_rows_s": None,
            }
        died = [each for each in job.of("died") if each["replica"] in self.replicas]
        noticed = min((each["at"] for each in died), default=None)
        lost = {row for each in died for row in each["rows"]}
        since = [each for each in job.of("row") if each["at"] > (noticed or at)]
        again = next((each["at"] for each in since if each["row"] in lost), None)
        joined = [each["at"] for each in job.of("joined") if each["at"] > (noticed or at)]
        over = again or noticed or at
        rows = [each["at"] for each in job.of("row")]
        gaps = [later - max(one, at) for one, later in pairwise(rows) if later > at and one < over]
        return {
            "noticed_s": None if noticed is None else noticed - at,
            "went_on_s": None if again is None else again - at,
            "joined_s": min(joined) - at if joined and (died or self.waits) else None,
            "without_rows_s": max(gaps, default=None),
        }
