"""Deadline: when a run ends, whether it is through or not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is on the clock of `time.monotonic`, in seconds.

    Rows run in an order that is drawn with `seed`, so that those done by then are a fair sample.
    """

    at: float
    seed: int = 0
