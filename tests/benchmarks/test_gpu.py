"""`benchmarks/gpu.py` as far as it can be tried without a GPU."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer

from pagedrun.cli.main import app

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
MACHINE = {
    "processor": "a CPU",
    "threads": 2,
    "python": "3.12.0",
    "versions": {"torch": "2.11.0", "numba": None},
    "gpu": "A GPU 80GB",
    "gpu_before": {"driver_version": "999.1"},
}
PASSING = "import sys; print('{}')"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; its facts about the GPU are made up."""
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_script", module)  # where its dataclass looks itself up
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "gpu_facts", lambda: None)
    monkeypatch.setattr(module, "describe_machine", lambda gpu: MACHINE)
    return module


@pytest.fixture
def run_python(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with steps whose arguments are Python to run."""

    def command(step: Any, junit: Path) -> list[str]:
        return [sys.executable, "-c", step.arguments.replace("JUNIT", str(junit))]

    monkeypatch.setattr(gpu.Step, "command", command)
    return gpu


def test_without_a_gpu_a_sentence(
    gpu: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--part", "kernels", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Error: torch sees no GPU here, and this measures nothing else.\n"
    assert list(tmp_path.iterdir()) == []


def test_starts_from_a_checkout() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--list"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    parts = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert parts == {"tests", "kernels", "throughput-small", "throughput-large"}


def test_the_commands_can_be_read(gpu: ModuleType) -> None:
    bench = typer.main.get_command(app).commands["bench"]  # type: ignore[attr-defined]
    seen = set()
    for step in (step for steps in gpu.PARTS.values() for step in steps if not step.is_pytest):
        command, name, *words = step.arguments.split()
        assert command == "bench"
        context = bench.commands[name].make_context(name, words)
        assert context.params["device"].value == "cuda"
        seen.add(name)
    assert seen == {"kernels", "throughput"}


def test_the_tests_are_those_marked_gpu(gpu: ModuleType, tmp_path: Path) -> None:
    (step,) = gpu.PARTS["tests"]
    words = step.command(tmp_path / "junit.xml")
    assert words[words.index("pytest") + 1 :][:2] == ["-m", "gpu"]
    assert "timeout" not in re.sub(r"--junitxml=\S+", "", " ".join(words))


def stopped(run_python: ModuleType, step: Any) -> dict[str, Any]:
    """Return the outcome of a step that does not end, stopped when it has said something."""
    for seconds in (1.0, 4.0, 16.0, 64.0):  # the more, the slower the machine
        outcome: dict[str, Any] = run_python.run_step(step, seconds)
        if outcome["said"]:
            break
    return outcome


class TestStep:
    def test_a_result_is_kept(self, run_python: ModuleType) -> None:
        step = run_python.Step("one", """print('{"bench": "kernels"}')""")
        outcome = run_python.run_step(step, 60.0)
        assert outcome["result"] == {"bench": "kernels"}
        assert "failed" not in outcome

    def test_a_failure_is_kept_with_its_last_lines(self, run_python: ModuleType) -> None:
        step = run_python.Step("one", "print('x\\n' * 99); raise ValueError('no such tile')")
        outcome = run_python.run_step(step, 60.0)
        assert outcome["failed"] == "exit status 1"
        assert outcome["said"][-1] == "ValueError: no such tile"

    def test_where_the_checkout_lies_is_not_told(self, run_python: ModuleType) -> None:
        step = run_python.Step("one", f"raise ValueError({str(run_python.ROOT / 'paged')!r})")
        assert run_python.run_step(step, 60.0)["said"][-1] == "ValueError: ./paged"

    def test_what_was_said_before_it_was_stopped(self, run_python: ModuleType) -> None:
        code = "import time; print('12 passed so far', flush=True); time.sleep(600)"
        outcome = stopped(run_python, run_python.Step("one", code))
        assert outcome["said"] == ["12 passed so far"]

    def test_no_result_is_a_failure(self, run_python: ModuleType) -> None:
        outcome = run_python.run_step(run_python.Step("one", "print('done')"), 60.0)
        assert "its result is no JSON" in outcome["failed"]

    def test_what_takes_too_long_is_stopped(self, run_python: ModuleType) -> None:
        code = "import sys, time; print('still here', file=sys.stderr, flush=True); time.sleep(600)"
        outcome = stopped(run_python, run_python.Step("one", code))
        assert re.fullmatch(r"stopped after \d+ s", outcome["failed"])
        assert outcome["said"] == ["still here"]

    def test_what_became_of_the_tests(self, gpu: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "test_it.py").write_text(
            "import pytest\n"
            "def test_good(): pass\n"
            "def test_bad(): assert 1 == 2\n"
            "def test_left_out(): pytest.skip('no reason')\n"
            "@pytest.fixture\n"
            "def broken(): raise ValueError('at the start')\n"
            "def test_error(broken): pass\n"
        )
        step = gpu.Step("tests", f"-q {gpu.PYTEST} {tmp_path}/test_it.py", is_pytest=True)
        outcome = gpu.run_step(step, 120.0)
        tests = outcome["tests"]
        counts = {name: tests[name] for name in ("passed", "failed", "errors", "skipped")}
        assert counts == dict.fromkeys(counts, 1)
        bad, broken = tests["failures"]
        assert bad["name"].endswith("::test_bad")
        assert any("assert 1 == 2" in line for line in bad["said"])
        assert any("at the start" in line for line in broken["said"])
        assert outcome["failed"] == "exit status 1"

    def test_no_tests_is_a_failure(self, gpu: ModuleType, tmp_path: Path) -> None:
        step = gpu.Step("tests", f"-q {gpu.PYTEST} {tmp_path}", is_pytest=True)
        assert gpu.run_step(step, 120.0)["failed"] == "exit status 5"


class TestParts:
    def parts(self, gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            gpu,
            "PARTS",
            {
                "kernels": (gpu.Step("a", "raise ValueError('lost')"), gpu.Step("b", "print(1/0)")),
                "tests": (gpu.Step("tests", "raise SystemExit(4)"),),
            },
        )

    def test_one_that_fails_stops_no_other(
        self, run_python: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.parts(run_python, monkeypatch)
        assert run_python.run_parts(["kernels", "tests"], tmp_path / "out", "A GPU 80GB") == 1
        path, page = sorted((tmp_path / "out").iterdir())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-gpu-a-gpu-80gb.json", path.name)
        parts = json.loads(path.read_text())["parts"]
        assert [step["name"] for step in parts["kernels"]["steps"]] == ["a", "b"]
        assert "failed" in parts["tests"]["steps"][0]
        text = page.read_text()
        for words in ("ValueError: lost", "ZeroDivisionError", "# A GPU 80GB", "driver_version"):
            assert words in text

    def test_parts_of_the_same_day_are_kept(
        self, run_python: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.parts(run_python, monkeypatch)
        run_python.run_parts(["tests"], tmp_path, "A GPU")
        run_python.run_parts(["kernels"], tmp_path, "A GPU")
        (path,) = tmp_path.glob("*.json")
        parts = json.loads(path.read_text())["parts"]
        assert set(parts) == {"tests", "kernels"}
        run_python.run_parts(["tests"], tmp_path, "Another GPU")
        assert len(list(tmp_path.glob("*.json"))) == 2

    def test_a_broken_result_is_set_aside(
        self, run_python: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.parts(run_python, monkeypatch)
        run_python.run_parts(["tests"], tmp_path, "A GPU")
        (path,) = tmp_path.glob("*.json")
        path.write_text('{"parts": {"ker')
        run_python.run_parts(["tests"], tmp_path, "A GPU")
        assert set(json.loads(path.read_text())["parts"]) == {"tests"}
        assert path.with_suffix(".broken").read_text() == '{"parts": {"ker'

    def test_each_step_gets_what_is_left(
        self, gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds: list[float] = []

        def run_step(step: Any, limit: float) -> dict[str, Any]:
            seconds.append(limit)
            return {"name": step.name, "seconds": 0.0}

        monkeypatch.setattr(gpu, "run_step", run_step)
        *_, last = gpu.run_part("throughput-small")
        assert seconds == pytest.approx([gpu.PART_SECONDS * 0.65, gpu.PART_SECONDS], rel=0.01)
        assert [step["name"] for step in last["steps"]] == [
            "nothing shared",
            "4,096 tokens shared",
        ]


def test_a_benchmark_is_drawn_as_its_command_draws_it(gpu: ModuleType) -> None:
    arguments = "--shape tiny --device cpu --only decode --context 40 --batch 1 --repeat 1"
    done = subprocess.run(
        [sys.executable, "-m", "pagedrun", "bench", "kernels", *arguments.split(), "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    step = {"name": "tiny", "command": "-", "result": json.loads(done.stdout)}
    part = {"began": "now", "seconds": 1.0, "steps": [step]}
    result = {"date": "2026-11-21", "machine": MACHINE, "parts": {"kernels": part}}
    page = gpu.as_markdown(result)
    assert "### Decode attention, ms" in page
    assert page.count("Not run.") == 3
