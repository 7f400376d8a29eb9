"""What other processes did on the machine meanwhile."""

import os
from pathlib import Path

import pytest

from pagedrun.paged.bench.result import Neighbours


class Clocks:
    """The time, and what of it this process computed, as `Neighbours` sees them."""

    def __init__(self) -> None:
        self.passed_s = 50.0
        self.computed_s = 20.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    module = "pagedrun.paged.bench.result"
    monkeypatch.setattr(f"{module}.perf_counter", lambda: clocks.passed_s)
    monkeypatch.setattr(f"{module}.process_time", lambda: clocks.computed_s)
    return clocks


class TestNeighbours:
    def test_counts_what_others_did(self, tmp_path: Path, clocks: Clocks) -> None:
        stat = tmp_path / "stat"
        tick = os.sysconf("SC_CLK_TCK")
        stat.write_text("cpu 10 0 10 1000 50 0 0 0 5 5\ncpu0 1 1\n")
        neighbours = Neighbours(stat)
        # 1000 CPU seconds of work, as much idling, and guests, who are in the work already.
        stat.write_text(
            f"cpu {10 + 600 * tick} 0 {10 + 400 * tick} {1000 + 1000 * tick} 50 0 0 0 99 9"
        )
        clocks.passed_s += 10
        assert neighbours.cpus_busy() == pytest.approx(100)

    def test_own_work_does_not_count(self, tmp_path: Path, clocks: Clocks) -> None:
        stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
        stat.write_text("cpu 10 0 10 1000 50 0 0 0 0 0\n")
        neighbours = Neighbours(stat)
        # All that the machine did in ten seconds: 3 CPU seconds of ours, and 20 of others.
        stat.write_text(f"cpu {10 + 23 * tick} 0 10 1000 50 0 0 0 0 0\n")
        clocks.passed_s += 10
        clocks.computed_s += 3
        assert neighbours.cpus_busy() == pytest.approx(2)
        assert neighbours.cpus_busy(children_s=15) == pytest.approx(0.5)

    def test_a_moment_is_too_short_to_tell(self, clocks: Clocks) -> None:
        neighbours = Neighbours()
        clocks.passed_s += 0.2
        assert neighbours.cpus_busy() is None

    def test_elsewhere_nothing_is_known(self, tmp_path: Path, clocks: Clocks) -> None:
        neighbours = Neighbours(tmp_path / "stat")
        clocks.passed_s += 10
        assert neighbours.cpus_busy() is None
