"""`benchmarks/gpu.py` as far as it can be tried without a GPU."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from benchmarks import gpu
from benchmarks.on_gpu.parts import (
    Part,
    PartRun,
    Step,
    as_markdown,
    gpu_parts,
    part_path,
    read_parts,
    small_parts,
)
from pagedrun.cli.main import app
from tests.benchmarks.gpu_steps import GOOD, python
from tests.support.command import Command

SCRIPT = Path(gpu.__file__)
LIMIT = 9 * 60
MACHINE = {
    "processor": "a CPU",
    "threads": 2,
    "python": "3.12.0",
    "versions": {"torch": "2.11.0", "numba": None},
    "gpu": "A GPU 80GB",
    "gpu_before": {"driver_version": "999.1"},
}


def test_without_a_gpu_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    assert gpu.main(["--part", "C", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Error: torch sees no GPU here, and this measures nothing else.\n"
    assert list(tmp_path.iterdir()) == []


def test_starts_from_a_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--list", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "parts.json").write_text(done.stdout)
    assert read_parts(tmp_path / "parts.json") == gpu_parts()


def test_every_part_ends_in_less_than_nine_minutes() -> None:
    assert list(gpu_parts()) == list(small_parts()) == ["A", "B", "C", "D", "E"]
    for part in gpu_parts().values():
        assert part.limit_s + gpu.GRACE_S < LIMIT


@pytest.mark.parametrize("parts", [gpu_parts(), small_parts()], ids=["on a GPU", "dry"])
def test_the_commands_can_be_read(parts: Any) -> None:
    bench = typer.main.get_command(app).commands["bench"]  # type: ignore[attr-defined]
    steps = [step for part in parts.values() for step in part.steps]
    for step in steps:
        words = step.command(Path("junit.xml"))[1:]
        if step.kind == "pagedrun":
            command, name, *options = words[2:]
            assert command == "bench"
            bench.commands[name].make_context(name, options)
        elif step.kind == "script":
            assert (gpu.ROOT / words[0]).is_file(), words
    assert {step.kind for step in steps} >= {"pagedrun", "script"}


def test_where_results_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where $OUT names the folder that comes back, they must be in there."""
    seen: list[Path] = []

    class Noted:
        def __init__(self, parts: object, out: Path, *rest: object, **others: object) -> None:
            seen.append(out)

        def run(self, names: object) -> int:
            return 0

    monkeypatch.setattr(gpu, "Driver", Noted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delenv("OUT", raising=False)
    gpu.main(["--dry-run"])
    monkeypatch.setenv("OUT", str(tmp_path / "back"))
    gpu.main(["--dry-run"])
    gpu.main(["--dry-run", "--out", str(tmp_path / "here")])
    assert seen == [SCRIPT.parent / "results", tmp_path / "back", tmp_path / "here"]


class TestPart:
    def run(self, part: Part, tmp_path: Path) -> tuple[bool, Any]:
        is_well = PartRun("X", part, tmp_path / "run").run()
        return is_well, json.loads(part_path(tmp_path / "run", "X").read_text())

    def test_a_step_that_fails_stops_no_other(self, tmp_path: Path) -> None:
        steps = (python("bad", "print('{'); raise ValueError('lost')"), GOOD)
        is_well, result = self.run(Part(60, steps), tmp_path)
        assert not is_well
        assert [step.get("failed") for step in result["steps"]] == ["exit status 1", None]
        assert result["is_complete"]
        assert "ValueError: lost" in (tmp_path / "run-X.log").read_text()

    def test_each_step_gets_its_share_of_what_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits: list[float] = []

        def run_step(step: Step, seconds: float, *_: object) -> dict[str, Any]:
            limits.append(seconds)
            return {"name": step.name, "seconds": 0.0}

        monkeypatch.setattr("benchmarks.on_gpu.parts.run_step", run_step)
        steps = (python("a", "", weight=1.0), python("b", "", weight=3.0), python("c", ""))
        is_well, _ = self.run(Part(1000, steps), tmp_path)
        assert is_well
        assert limits == pytest.approx([1600 / 5, 1000, 1000], rel=0.01)


class TestIsolation:
    """Parts that are killed, that hang and that are lost at once lose themselves alone."""

    @pytest.fixture
    def driven(self, tmp_path: Path) -> Iterator["Driven"]:
        driven = Driven(tmp_path)
        yield driven
        driven.end()

    def test_a_part_that_is_killed_loses_only_itself(self, driven: "Driven") -> None:
        hangs = python("hangs", "import time; time.sleep(900)")
        driven.start({"A": Part(600, (GOOD, hangs, GOOD)), "B": Part(600, (GOOD,))})
        step = driven.running("A", "hangs")
        os.kill(driven.part_process(), signal.SIGKILL)
        assert driven.status() == 1
        killed, other = driven.result("A"), driven.result("B")
        assert killed["failed"] == "ended with status -9"
        assert [each["name"] for each in killed["steps"]] == ["good", "hangs"]
        assert "failed" not in killed["steps"][0]
        assert killed["steps"][1]["failed"].startswith("lost: the part ended")
        assert other["is_complete"]
        assert [each.get("failed") for each in other["steps"]] == [None]
        ended(step)  # what the part had started
        page = driven.page()
        assert "It ended with status -9" in page
        assert "# Part B" in page

    def test_a_driver_that_is_told_to_leave_leaves_nothing_behind(self, driven: "Driven") -> None:
        driven.start({"A": Part(600, (python("hangs", "import time; time.sleep(900)"),))})
        step = driven.running("A", "hangs")
        driven.process.terminate()
        assert driven.status() == 143
        ended(step)


def ended(process: int) -> None:
    """Wait until a process is no more, but for what nobody has asked about it."""
    stat = Path(f"/proc/{process}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.05)


class Driven:
    """A run of the script over parts of a test's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process: subprocess.Popen[bytes]

    def start(self, parts: dict[str, Part]) -> None:
        path = self._folder / "parts.json"
        path.write_text(json.dumps({name: part.to_dict() for name, part in parts.items()}))
        command = [sys.executable, str(SCRIPT), "--parts", str(path)]
        out = self._folder / "out"
        self.process = subprocess.Popen([*command, "--out", str(out)], cwd=self._folder)

    def running(self, part: str, step: str) -> int:
        """Wait until a step runs; return its process group."""
        while True:
            for path in (self._folder / "out").glob(f"*-{part}.json"):
                running = json.loads(path.read_text())["running"]
                if running is not None and running["name"] == step:
                    return int(running["group"])
            assert self.process.poll() is None, "the run ended before"
            time.sleep(0.05)

    def part_process(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (child,) = children.read_text().split()
        return int(child)

    def status(self) -> int:
        return self.process.wait(600)

    def result(self, part: str) -> Any:
        (path,) = (self._folder / "out").glob(f"*-{part}.json")
        return json.loads(path.read_text())

    def page(self) -> str:
        (path,) = (self._folder / "out").glob("*.md")
        return path.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_dry_run_is_all_well(tmp_path: Path) -> None:
    """All parts, their scripts and benchmarks, on small sizes of a CPU."""
    assert not torch.cuda.is_available()
    done = subprocess.run([sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path)])
    results = {path.stem[-1]: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    failed = [step for part in results.values() for step in part["steps"] if "failed" in step]
    assert not failed, failed
    assert set(results) == {"A", "B", "C", "D", "E"}
    assert done.returncode == 0
    (page,) = tmp_path.glob("*.md")
    assert "### Throughput" in page.read_text()


def test_a_benchmark_is_drawn_as_its_command_draws_it(pagedrun: Command, tmp_path: Path) -> None:
    arguments = "--shape tiny --device cpu --only decode --context 40 --batch 1 --repeat 1"
    saved = tmp_path / "tiny.md"
    status, _, err = pagedrun("bench", "kernels", *arguments.split(), "--save", str(saved))
    assert status == 0, err
    step = {"name": "tiny", "command": "-", "page": saved.read_text()}
    part = {"began": "now", "seconds": 1.0, "about": "kernels", "steps": [step]}
    page = as_markdown("2026-11-21", MACHINE, ["A", "B", "C"], {"B": part})
    assert "### Decode attention, ms" in page
    assert "driver_version 999.1" in page
    assert page.count("Not run.") == 2
