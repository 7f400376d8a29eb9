"""StateCounts: what became of the snapshots of recurrent layers' states."""

from dataclasses import dataclass


@dataclass(slots=True)
class StateCounts:
    """Snapshots since the run began: `made`, and how many sequences have `used` one."""

    made: int = 0
    used: int = 0
