"""One step of `benchmarks/gpu.py`: what of it is kept, however it ends."""

import re
from pathlib import Path
from typing import Any

from benchmarks.on_gpu.parts import ROOT, Step, run_step
from tests.benchmarks.gpu_steps import GOOD, python


def run(step: Step, seconds: float = 120.0) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    return run_step(step, seconds, said.append), said


def stopped(step: Step) -> tuple[dict[str, Any], list[str]]:
    """Return the outcome of a step that does not end, stopped when it has said something."""
    for seconds in (1.0, 4.0, 16.0, 64.0):  # the more, the slower the machine
        outcome, said = run(step, seconds)
        if said:
            break
    return outcome, said


class TestStep:
    def test_a_result_is_kept(self) -> None:
        outcome, _ = run(python("one", "print('{\\'bench\\': 3}'.replace(chr(39), chr(34)))"))
        assert outcome["result"] == {"bench": 3}
        assert "failed" not in outcome

    def test_a_failure_is_kept_with_its_last_lines(self) -> None:
        code = "import sys; print('x' * 9, file=sys.stderr); raise ValueError('no such tile')"
        outcome, said = run(python("one", code))
        assert outcome["failed"] == "exit status 1"
        assert outcome["said"][-1] == "ValueError: no such tile"
        assert said[0] == "x" * 9

    def test_where_the_checkout_lies_is_not_told(self) -> None:
        outcome, said = run(python("one", f"raise ValueError({str(ROOT / 'paged')!r})"))
        assert outcome["said"][-1] == said[-1] == "ValueError: ./paged"

    def test_no_result_is_a_failure(self) -> None:
        outcome, _ = run(python("one", "print('done')"))
        assert "its result is no JSON" in outcome["failed"]

    def test_what_takes_too_long_is_stopped_with_all_that_it_started(self) -> None:
        code = (
            "import subprocess, sys, time; print('still here', file=sys.stderr, flush=True); "
            "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
        )
        outcome, said = stopped(python("one", code))
        assert re.fullmatch(r"stopped after \d+ s", outcome["failed"])
        assert outcome["said"] == said == ["still here"]

    def test_rows_that_must_be_the_same(self) -> None:
        ratio = "dict(name='eager', rows_alike=3, rows={rows})"
        code = "import json; print(json.dumps(dict(ratios=[" + ratio + "])))"
        same, _ = run(python("one", code.replace("{rows}", "3"), alike=True))
        other, _ = run(python("one", code.replace("{rows}", "4"), alike=True))
        assert "failed" not in same
        assert other["failed"] == "rows are not the same: 3 of 4 as eager"

    def test_what_became_of_the_tests(self, tmp_path: Path) -> None:
        (tmp_path / "test_it.py").write_text(
            "import pytest\n"
            "def test_good(): pass\n"
            "def test_bad(): assert 1 == 2\n"
            "def test_left_out(): pytest.skip('no reason')\n"
            "@pytest.fixture\n"
            "def broken(): raise ValueError('at the start')\n"
            "def test_error(broken): pass\n"
        )
        outcome, said = run(Step("tests", f"-q {tmp_path}/test_it.py", "pytest"))
        tests = outcome["tests"]
        counts = {name: tests[name] for name in ("passed", "failed", "errors", "skipped")}
        assert counts == dict.fromkeys(counts, 1)
        bad, broken = tests["failures"]
        assert bad["name"].endswith("::test_bad")
        assert any("assert 1 == 2" in line for line in bad["said"])
        assert any("at the start" in line for line in broken["said"])
        assert outcome["failed"] == "exit status 1"
        assert any("1 failed" in line for line in said)

    def test_no_tests_is_a_failure(self, tmp_path: Path) -> None:
        assert run(Step("tests", f"-q {tmp_path}", "pytest"))[0]["failed"] == "exit status 5"


def test_a_step_that_ends_at_once_is_no_failure() -> None:
    assert "failed" not in run(GOOD)[0]
