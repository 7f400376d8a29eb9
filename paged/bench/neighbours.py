"""Neighbours: what others on the machine kept its CPUs busy with while something was measured."""

import os
from pathlib import Path
from time import perf_counter, process_time

MIN_SECONDS = 0.25  # the system counts in hundredths of a second
_IDLE = slice(3, 5)  # of the fields of /proc/stat: idle, and waiting for a disk
_GUEST = 8  # from here on, time that is counted among the others already


class Neighbours:
    """Measures from when it is made. Elsewhere than on Linux it knows nothing."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._own = process_time()
        self._at = perf_counter()
        self._all = self._busy()

    def cpus_busy(self) -> float | None:
        """Return how many CPUs all other processes kept busy so far, on average; at least 0.

        None if that cannot be known, or the time was too short to tell.
        """
        before, now = self._all, self._busy()
        seconds = perf_counter() - self._at
        if before is None or now is None or seconds < MIN_SECONDS:
            return None
        return max((now - before - (process_time() - self._own)) / seconds, 0.0)

    def _busy(self) -> float | None:
        """Return the seconds of all CPUs that were not idle, since the machine began."""
        try:
            with self._stat.open() as file:
                fields = [int(word) for word in file.readline().split()[1:]][:_GUEST]
        except (OSError, ValueError):
            return None
        return (sum(fields) - sum(fields[_IDLE])) / os.sysconf("SC_CLK_TCK")
