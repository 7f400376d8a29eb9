"""Processor time of each test: what the default run takes, in which order, and what took longest.

    pytest --write-durations [PYTEST ARGUMENTS]

writes tests/durations.json: the processor seconds of each test file, and those of each test that
took more than `SHORT`. Times are of all threads, and of programs that a test started and waited
for. Those of a test are without its fixtures and without the kernels that it is the first to need,
which would fall to another test if it did not run. Nothing fails because it took long.

Of the cases of a test that take more than `SHORT`, the default run takes the shortest, if a shorter
one does not run anyway; none that takes more than `LONG`, unless `@pytest.mark.heavy("why")` says
why it is needed, or it holds an `invariant`. The others are `long`.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from numba.core import event

DURATIONS = Path(__file__).parents[1] / "durations.json"
SHORT = 1.0
LONG = 5.0
_WHOLE, _OWN = "processor seconds", "processor seconds of its own"
_Seconds = dict[str, float]


def measured() -> dict[str, _Seconds]:
    """Return the recorded seconds, of "files" and of "tests"."""
    durations: dict[str, _Seconds] = json.loads(DURATIONS.read_text())
    return durations


def left_to_long(
    cases: Iterable[str], seconds: Mapping[str, float], *, is_heavy: bool = False
) -> Iterator[str]:
    """Yield which cases of one test the default run does not take, by what they are known to take.

    cases: ids of the cases that it would take. One that nobody measured is short.
    """
    taken = {case: seconds.get(case, 0.0) for case in cases}
    shortest = min(taken, key=lambda case: taken[case])
    for case, own in taken.items():
        if own > SHORT and (case != shortest or (own > LONG and not is_heavy)):
            yield case


class ProcessorTime(event.Listener):  # type: ignore[misc] # numba has no types
    """Plugin of pytest that measures, chooses and orders tests, and reports."""

    def __init__(self) -> None:
        self._whole: _Seconds = {}
        self._own: _Seconds = {}
        self._start = 0.0
        self._depth = 0  # of compilations, which compile what they call
        self._compiling = 0.0  # processor seconds, less those at which one that is running began
        event.register("numba:compile", self)

    def on_start(self, event: Any) -> None:
        """Note when Numba begins to compile."""
        if self._depth == 0:
            self._compiling -= _processor_seconds()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Note when it ends."""
        self._depth -= 1
        if self._depth == 0:
            self._compiling += _processor_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark what is left to `long`; put the files that take longest first.

        A processor must not begin a long file last. One process keeps the order that it is given.
        """
        durations = measured()
        if "PYTEST_XDIST_WORKER" in os.environ:
            items.sort(key=lambda item: -durations["files"].get(_file_of(item.nodeid), 0.0))
        of_test: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
        for item in items:
            if not any(map(item.get_closest_marker, ("long", "gpu"))):
                of_test[item.nodeid.partition("[")[0]][item.nodeid] = item
        for cases in of_test.values():
            is_heavy = any(map(has_reason, cases.values()))
            for name in left_to_long(cases, durations["tests"], is_heavy=is_heavy):
                cases[name].add_marker("long")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Note when a test begins."""
        self._start = _processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Measure a test without its fixtures and the compilation of kernels."""
        start = _processor_seconds() - self._compiling
        try:
            return (yield)
        finally:
            own = _processor_seconds() - self._compiling - start
            item.user_properties.append((_OWN, round(own, 2)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the time to the last report of a test, by which it comes from another process."""
        report = yield
        if call.when == "teardown":
            seconds = _processor_seconds() - self._start
            report.user_properties.append((_WHOLE, round(seconds, 2)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the times of a test."""
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name in (_WHOLE, _OWN):
                times = self._whole if name == _WHOLE else self._own
                times[report.nodeid] = float(str(value))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Show the ten longest tests, and write the file if that is asked for."""
        if not self._whole:
            return
        total = sum(self._whole.values())
        terminalreporter.section(f"{total:.0f} processor seconds; the ten longest tests")
        for name, seconds in [*_longest_first(self._whole).items()][:10]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
        if config.getoption("--write-durations"):
            DURATIONS.write_text(json.dumps(self._durations(), indent=1) + "\n")

    def _durations(self) -> dict[str, _Seconds]:
        """Return what is known now; of tests that did not run, what was known before."""
        before = measured()
        files: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._whole.items():
            files[_file_of(name)] += seconds
        tests = {name: s for name, s in before["tests"].items() if name not in self._own}
        tests |= {name: s for name, s in self._own.items() if s > SHORT}
        return {"files": _longest_first(before["files"] | files), "tests": _longest_first(tests)}


def has_reason(item: pytest.Item) -> bool:
    """Return whether a test says why it may take long; its mark alone is no reason."""
    marks = map(item.get_closest_marker, ("heavy", "invariant"))
    return any(mark is not None and mark.args for mark in marks)


def _longest_first(seconds: Mapping[str, float]) -> _Seconds:
    longest = sorted(seconds.items(), key=lambda each: -each[1])
    return {name: round(each, 1) for name, each in longest}


def _file_of(node: str) -> str:
    return node.split("::", 1)[0]


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
