"""Processor time of each test: the longest files come first, and a run ends with its ten longest.

    pytest --write-durations [PYTEST ARGUMENTS]

writes tests/durations.json: the processor seconds of each test file, and of each test
that took more than `NOTED`. Times are of all threads, and of programs that a test started and
waited for. Order and file are of use with any processor; nothing fails because it took long.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

DURATIONS = Path(__file__).parents[1] / "durations.json"
NOTED = 1.0
_PROPERTY = "processor seconds"


def measured() -> dict[str, dict[str, float]]:
    """Return the recorded seconds, of "files" and of "tests"."""
    durations: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text())
    return durations


class ProcessorTime:
    """Plugin of pytest that measures tests, orders them and reports."""

    def __init__(self) -> None:
        self._of_test: dict[str, float] = {}
        self._start = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the files that take longest first: a processor must not begin one of them last."""
        files = measured()["files"]
        items.sort(key=lambda item: -files.get(_file_of(item.nodeid), 0.0))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Note when a test begins."""
        self._start = _processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the time to the last report of a test, by which it comes from another process."""
        report = yield
        if call.when == "teardown":
            seconds = _processor_seconds() - self._start
            report.user_properties.append((_PROPERTY, round(seconds, 2)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the time of a test."""
        for name, value in report.user_properties:
            if name == _PROPERTY and report.when == "teardown":
                self._of_test[report.nodeid] = float(str(value))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Show the ten longest tests, and write the file if that is asked for."""
        if not self._of_test:
            return
        total = sum(self._of_test.values())
        terminalreporter.section(f"{total:.0f} processor seconds; the ten longest tests")
        for name, seconds in self._longest_first()[:10]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
        if config.getoption("--write-durations"):
            DURATIONS.write_text(json.dumps(self._durations(), indent=1) + "\n")

    def _durations(self) -> dict[str, dict[str, float]]:
        files: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._of_test.items():
            files[_file_of(name)] += seconds
        longest = sorted(files.items(), key=lambda each: -each[1])
        return {
            "files": {name: round(seconds, 1) for name, seconds in longest},
            "tests": {name: round(s, 1) for name, s in self._longest_first() if s > NOTED},
        }

    def _longest_first(self) -> list[tuple[str, float]]:
        return sorted(self._of_test.items(), key=lambda each: -each[1])


def _file_of(node: str) -> str:
    return node.split("::", 1)[0]


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
