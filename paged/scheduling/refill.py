"""Refill: when sequences may join those that run."""

import math


class Refill:
    """Lets them join when enough of those that ran have ended, many at a time.

    A step that begins sequences computes prompts beside the tokens of the others, and costs a
    device that replays its steps more than one that does not. So when no more could join, for want
    of seats or of memory, the next ones wait until a share of those that ran then has ended.
    """

    def __init__(self, share: float) -> None:
        """share: 0 to 1; 0 lets everybody join at once."""
        self._share = share
        self._num_full = 0  # how many ran when no more could join

    def is_open(self, num_running: int) -> bool:
        """Return whether others may join so many; they always may if nobody runs."""
        self._num_full = max(self._num_full, num_running) if self._num_full else 0
        if not self._num_full or not num_running:
            return True
        return self._num_full - num_running >= math.ceil(self._share * self._num_full)

    def open(self) -> None:
        """Take note that others are joining, now and in the next steps."""
        self._num_full = 0

    def close(self, num_running: int) -> None:
        """Take note that no more can join so many."""
        self._num_full = num_running
