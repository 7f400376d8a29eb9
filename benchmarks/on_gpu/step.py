"""Step: one command of a part, run for so long at most, its words streamed, its result kept."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import IO, Any, Literal

ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 15
# Without the options of pyproject.toml: they ask for plugins that may not be there.
PYTEST = "-o addopts= --import-mode=importlib --continue-on-collection-errors -p no:cacheprovider"

Say = Callable[[str], None]
Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One command: `pagedrun ARGUMENTS --json`, `pytest ARGUMENTS`, or `python ARGUMENTS`.

    A script prints JSON, as pagedrun does. weight: how much of what is left of its part's time is
    this step's, beside the later ones. alike: all rows of all that is compared must be the same.
    """

    name: str
    arguments: str
    kind: Literal["pagedrun", "pytest", "script"] = "pagedrun"
    weight: float = 1.0
    alike: bool = False

    def command(self, junit: Path) -> list[str]:
        """Return what is run; pytest writes what came of it to `junit`."""
        words = shlex.split(self.arguments)
        if self.kind == "pytest":
            options = [*shlex.split(PYTEST), f"--junitxml={junit}"]
            return [sys.executable, "-m", "pytest", *words, *options]
        if self.kind == "script":
            return [sys.executable, *words]
        return [sys.executable, "-m", "pagedrun", *words, "--json"]

    @property
    def shown(self) -> str:
        """The command as it can be typed."""
        return f"{'python' if self.kind == 'script' else self.kind} {self.arguments}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as a file of parts has them."""
        return asdict(self)


def run_step(step: Step, seconds: float, say: Say, began: Say | None = None) -> Outcome:
    """Run a step for at most `seconds`; return its result, or how it failed.

    `say` gets each line that the command says when it says it, `began` the number of the process
    group, by which somebody else can end it.
    """
    started = perf_counter()
    outcome: Outcome = {"name": step.name, "command": step.shown}
    with tempfile.TemporaryDirectory() as folder:
        junit, printed = Path(folder) / "junit.xml", Path(folder) / "stdout"
        with printed.open("w") as stdout:
            process = subprocess.Popen(
                step.command(junit),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": _python_path(), "PAGEDRUN_DEBUG": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if step.kind == "pytest" else stdout,
                stderr=subprocess.STDOUT if step.kind == "pytest" else subprocess.PIPE,
                process_group=0,
            )
            if began is not None:
                began(str(process.pid))
            said: deque[str] = deque(maxlen=LAST_LINES)
            stream = process.stdout if step.kind == "pytest" else process.stderr
            assert stream is not None
            reader = Thread(target=_pass_on, args=(stream, said, say), daemon=True)
            reader.start()
            try:
                status = process.wait(max(seconds, 1.0))
            except subprocess.TimeoutExpired:
                outcome["failed"] = f"stopped after {seconds:.0f} s"
                status = None
            end_group(process.pid)  # what the command started ends with it
            process.wait()
            reader.join(10)
        if status is not None:
            outcome |= _result(step, status, printed, junit)
    if "failed" in outcome:
        outcome["said"] = list(said)
    return {**outcome, "seconds": round(perf_counter() - started, 1)}


def end_group(pid: int) -> None:
    """Kill a process group, if it is still there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _pass_on(stream: IO[bytes], said: deque[str], say: Say) -> None:
    """Pass on lines until the stream ends. The folder of the checkout is left out of them."""
    for raw in stream:
        line = raw.decode(errors="replace").rstrip().replace(str(ROOT), ".")
        if line:
            said.append(line)
            say(line)


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    own = [str(ROOT / "src"), str(ROOT)]
    return os.pathsep.join([*own, *([inherited] if inherited else [])])


def _result(step: Step, status: int, printed: Path, junit: Path) -> Outcome:
    """Return what a command that ended has to say."""
    failed = {"failed": f"exit status {status}"}
    if step.kind == "pytest":
        try:
            return {"tests": read_junit(junit), **({} if status == 0 else failed)}
        except (OSError, xml.ParseError):
            return failed
    try:
        result = json.loads(printed.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        return failed if status else {"failed": f"its result is no JSON ({error})"}
    if status:
        return {**failed, "result": result}
    if step.alike and (unlike := _unlike(result)):
        return {"failed": f"rows are not the same: {unlike}", "result": result}
    return {"result": result}


def _unlike(result: Any) -> str:
    """Return which comparisons of `bench throughput` have rows that differ."""
    pairs = [(each["name"], each["rows_alike"], each["rows"]) for each in result["ratios"]]
    assert pairs, "nothing was compared"
    return ", ".join(f"{alike} of {rows} as {name}" for name, alike, rows in pairs if alike < rows)


def read_junit(path: Path) -> dict[str, Any]:
    """Return how many tests there were, and the failed ones with the last lines they said."""
    counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
    failures: list[dict[str, Any]] = []
    for case in xml.parse(path).iter("testcase"):
        kinds = {"failure": "failed", "error": "errors", "skipped": "skipped"}
        ended = next((each for each in case if each.tag in kinds), None)
        counts["passed" if ended is None else kinds[ended.tag]] += 1
        if ended is not None and ended.tag != "skipped":
            text = (ended.text or ended.get("message") or "").replace(str(ROOT), ".")
            name = f"{case.get('classname')}::{case.get('name')}"
            failures.append({"name": name, "said": text.rstrip().splitlines()[-LAST_LINES:]})
    return {**counts, "failures": failures}
