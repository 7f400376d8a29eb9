"""Parts of the GPU measurement, their steps, and the page of their results.

A part runs in a process of its own and writes its file after each step, so that a step that
hangs, fails or is killed loses only itself. A step is one command with a time limit; its output is
streamed and its result kept. The same parts exist with small steps for a CPU.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import IO, Any, Literal

# As nano-vLLM's benchmark has it, nothing shared; and what pagedrun is for.
UNSHARED = "--rows 256 --shared 0 --unique 100:1024 --output 100:1024 --max-model-len 2048"
SHARED = "--rows 1024 --shared 4096 --unique 128 --output 128 --max-model-len 4352"
# Rows that finish and are admitted all the time, four times as many as seats.
STEADY = "--rows 4096 --shared 0 --unique 64:512 --output 32:256 --max-model-len 1024"
FEW = "--rows 64 --shared 512 --unique 32:96 --output 16:48 --max-model-len 1024"

SMALL_LIMIT_S = 1500.0  # of a part on a CPU, which may be busy: it is not what is tried there


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
        """Return the command; pytest writes to `junit`, a benchmark its page beside it."""
        words = shlex.split(self.arguments)
        if self.kind == "pytest":
            options = [*shlex.split(PYTEST), f"--junitxml={junit}"]
            return [sys.executable, "-m", "pytest", *words, *options]
        if self.kind == "script":
            return [sys.executable, *words]
        page = str(junit.with_suffix(".md"))
        return [sys.executable, "-m", "pagedrun", *words, "--json", "--save", page]

    @property
    def shown(self) -> str:
        """The command as it can be typed."""
        return f"{'python' if self.kind == 'script' else self.kind} {self.arguments}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as a file of parts has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Part:
    """Steps that are run one after the other, for `limit_s` seconds in all."""

    limit_s: float
    steps: tuple[Step, ...]
    about: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as a file of parts has them."""
        steps = [step.to_dict() for step in self.steps]
        return {"limit_s": self.limit_s, "steps": steps, "about": self.about}


Parts = Mapping[str, Part]


def read_parts(path: Path) -> Parts:
    """Return the parts of a JSON file, as `gpu.py --list --json` prints them."""
    return {
        name: Part(
            part["limit_s"], tuple(Step(**step) for step in part["steps"]), part.get("about", "")
        )
        for name, part in json.loads(path.read_text(encoding="utf-8")).items()
    }


def gpu_parts() -> Parts:
    """Return the parts A to E, which end within 18 minutes together."""
    engine = (
        "--device cuda --dtype bfloat16 --max-num-seqs 1024 --max-num-batched-tokens 16384 "
        "--block-size 64 --gpu-memory-utilization 0.9"
    )
    small, large = (
        f"bench throughput --shape {shape} {engine}" for shape in ("qwen3-0.6b", "qwen3-8b")
    )
    kernels = "bench kernels --device cuda --shape qwen3-8b --block-size 64"
    few = SHARED.replace("--output 128", "--output 32")
    return {
        "A": Part(
            240,
            (
                Step("imports", "benchmarks/on_gpu/imports.py", "script", 0.2),
                Step(
                    "all tests",
                    "-m gpu -q -n 12 --dist worksteal tests/whole/test_gpu_families.py "
                    "tests/whole/test_gpu.py tests/kernels tests/bench/test_bench_kernels.py",
                    "pytest",
                    4.0,
                ),
                Step(
                    "graphs against eager",
                    f"{small} {FEW} --reproducible --compare enforce-eager --repeat 1",
                    alike=True,
                ),
            ),
            "imports, all tests that need a GPU, graphs against eager",
        ),
        "B": Part(
            240,
            (
                # The first run of a process loads kernels that the later ones have.
                Step("0.6B, shared", f"{small} {SHARED} --repeat 3"),
                Step("8B, shared", f"{large} {SHARED} --repeat 2", weight=1.5),
                Step("0.6B, nothing shared", f"{small} {UNSHARED} --repeat 2"),
                Step("0.6B, steady state", f"{small} {STEADY} --repeat 2"),
                Step("8B, nothing shared", f"{large} {UNSHARED} --repeat 2", weight=2.0),
            ),
            "tokens a second of Qwen3-0.6B and 8B",
        ),
        "C": Part(
            150,
            (
                Step(
                    "attention",
                    f"{kernels} --only decode,prefix,prefill --context 128,512 --batch 256,1024 "
                    "--prefix 1024,4096,16384 --group 64,256,1024 --budget 30",
                ),
                Step("the rest of a layer", f"{kernels} --only ops --budget 15", weight=0.5),
                Step(
                    "quantized weights",
                    "benchmarks/packed_linears.py --device cuda --json",
                    "script",
                ),
            ),
            "kernels by size",
        ),
        "D": Part(
            180,
            (
                Step(
                    "Transformers, continuous batching",
                    "benchmarks/on_gpu/generate_batch.py --device cuda --shape qwen3-0.6b "
                    "--rows 128 --shared 1024 --unique 64 --output 64",
                    "script",
                ),
                Step(
                    "the same rows here",
                    f"{small} --rows 128 --shared 1024 --unique 64 --output 64 --repeat 3",
                ),
                Step("attention of others", "benchmarks/on_gpu/peer_kernels.py", "script"),
            ),
            "what others do on the same rows and sizes",
        ),
        "E": Part(
            240,
            (
                Step("0.6B, shared, profiled", f"{small} {SHARED} --repeat 1 --profile"),
                Step(
                    "0.6B, once against alone",
                    f"{small} {few} --compare no-prefix-once --repeat 2 --reproducible",
                    alike=True,
                ),
                Step(
                    "0.6B, the vendor's products against ours",
                    f"{small} {few} --compare reproducible --repeat 2",
                ),
                Step("8B, shared, profiled", f"{large} {few} --repeat 1 --profile", weight=2.0),
            ),
            "profiles, and what reading a prefix once and the same bytes cost",
        ),
    }


def small_parts() -> Parts:
    """Return the same parts with steps that a CPU gets through, to see that they run at all."""
    engine = "--device cpu --dtype float32 --max-num-seqs 8 --shape tiny --block-size 16"
    throughput = f"bench throughput {engine}"
    rows = "--rows 6 --shared 32 --unique 4:12 --output 2:6"
    kernels = "bench kernels --device cpu --shape tiny --dtype float32 --repeat 1 --budget 5"
    return {
        "A": Part(
            SMALL_LIMIT_S,
            (
                Step("imports", "benchmarks/on_gpu/imports.py", "script"),
                Step(
                    "with prefixes against without",
                    f"{throughput} {rows} --compare no-prefix-caching --repeat 1",
                    alike=True,
                ),
                Step("profiled", f"{throughput} {rows} --profile"),
            ),
        ),
        "B": Part(SMALL_LIMIT_S, (Step("tiny", f"{throughput} {rows}"),)),
        "C": Part(
            SMALL_LIMIT_S,
            (Step("decode points", f"{kernels} --only decode --context 16 --batch 2"),),
        ),
        "D": Part(
            SMALL_LIMIT_S,
            (
                Step(
                    "Transformers, continuous batching",
                    "benchmarks/on_gpu/generate_batch.py --device cpu --shape tiny --rows 2 "
                    "--shared 8 --unique 4 --output 4 --dtype float32 --num-blocks 16",
                    "script",
                ),
                Step("attention of others", "benchmarks/on_gpu/peer_kernels.py", "script"),
            ),
        ),
        "E": Part(
            SMALL_LIMIT_S,
            (
                Step(
                    "two files of tests",
                    "-m 'not gpu' -q -n 2 tests/bench/test_spread.py "
                    "tests/kernels/gpu/test_chip.py",
                    "pytest",
                ),
            ),
        ),
    }


# A step takes no more than so many times what falls to it by weight; the last one what is left.
SLACK = 1.6


class PartRun:
    """A run of a part, which keeps STEM-NAME.json up to date and adds to STEM-NAME.log."""

    def __init__(self, name: str, part: Part, stem: Path) -> None:
        self._name = name
        self._part = part
        self._path = part_path(stem, name)
        self._log = self._path.with_suffix(".log").open("a", encoding="utf-8")
        self._began = perf_counter()
        self._result: dict[str, Any] = {
            "part": name,
            "about": part.about,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "limit_s": part.limit_s,
            "gpu_before": gpu_facts(),
            "steps": [],
            "running": None,
        }

    def run(self) -> bool:
        """Run all steps; return whether none failed."""
        for index, step in enumerate(self._part.steps):
            self._say(f"{step.name}: {step.shown}")

            def note(pid: str, name: str = step.name, shown: str = step.shown) -> None:
                self._result["running"] = {"name": name, "command": shown, "group": int(pid)}
                self._write()

            outcome = run_step(step, self._seconds_for(index), self._say, note)
            self._result["steps"].append(outcome)
            self._result["running"] = None
            self._say(f"{step.name}: {outcome.get('failed', 'done')}, {outcome['seconds']} s")
            self._write()
        self._result["gpu_after"] = gpu_facts()
        self._result["is_complete"] = True
        self._write()
        return not any("failed" in each for each in self._result["steps"])

    def _seconds_for(self, index: int) -> float:
        left = self._part.limit_s - (perf_counter() - self._began)
        weights = [step.weight for step in self._part.steps[index:]]
        return min(left, SLACK * left * weights[0] / sum(weights))

    def _say(self, line: str) -> None:
        text = f"{self._name} {perf_counter() - self._began:6.1f} s  {line}"
        print(text, file=self._log, flush=True)
        print(text, file=sys.stderr, flush=True)

    def _write(self) -> None:
        self._result["seconds"] = round(perf_counter() - self._began, 1)
        write_json(self._path, self._result)


def part_path(stem: Path, name: str) -> Path:
    """Return the file of a part."""
    return stem.with_name(f"{stem.name}-{name}.json")


def write_json(path: Path, value: Any) -> None:
    """Write a file whole: whoever reads it finds the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read_part(path: Path) -> dict[str, Any] | None:
    """Return what a part has written, None where there is nothing."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return result


def interrupted(result: dict[str, Any], why: str) -> dict[str, Any]:
    """Return the result of a part whose process ended early, its running step marked as lost."""
    running = result.get("running")
    lost: list[Outcome] = []
    if running is not None:
        lost = [{**running, "failed": f"lost: the part {why}", "said": [], "seconds": 0.0}]
        del lost[0]["group"]
    return {**result, "steps": [*result["steps"], *lost], "running": None, "failed": why}


ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 15
# Without the options of pyproject.toml: they ask for plugins that may not be there.
PYTEST = "-o addopts= --import-mode=importlib --continue-on-collection-errors -p no:cacheprovider"

Say = Callable[[str], None]
Outcome = dict[str, Any]


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
    outcome: Outcome = {"result": result}
    with suppress(OSError):
        outcome["page"] = junit.with_suffix(".md").read_text(encoding="utf-8")
    if status:
        return {**failed, **outcome}
    if step.alike and (unlike := _unlike(result)):
        return {"failed": f"rows are not the same: {unlike}", **outcome}
    return outcome


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


GPU_FACTS = (
    "name,memory.total,driver_version,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,"
    "clocks.memory,temperature.gpu,utilization.gpu,memory.used"
)


def gpu_facts() -> dict[str, str] | None:
    """Return what nvidia-smi says of the first GPU, None where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = done.stdout.splitlines()[0].split(",") if done.stdout else []
    return dict(zip(GPU_FACTS.split(","), map(str.strip, values), strict=False))


def describe_machine(gpu: str, device: str) -> dict[str, Any]:
    """Return the machine and the versions that matter here."""
    from importlib.metadata import PackageNotFoundError, version

    from pagedrun.paged.metrics.run_statistics import describe_hardware

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    hardware = describe_hardware(device)
    packages = ("triton", "numpy", "pytest")
    hardware["versions"] |= {package: installed(package) for package in packages}
    return {**hardware, "gpu": gpu, "gpu_before": gpu_facts()}


def as_markdown(
    date: str, machine: Mapping[str, Any], names: Seq[str], parts: Mapping[str, Any]
) -> str:
    """Return the page; `parts` are the results of those that were run, of all `names`."""
    versions = ", ".join(f"{name} {each}" for name, each in machine["versions"].items() if each)
    facts = ", ".join(f"{key} {value}" for key, value in (machine["gpu_before"] or {}).items())
    lines = [
        f"# {machine['gpu']}, {date}",
        "",
        f"- machine: {machine['processor']}, {machine['threads']} threads",
        f"- GPU: {facts or machine['gpu']}",
        f"- versions: python {machine['python']}, {versions}",
        "- command: `python benchmarks/gpu.py`, one part at a time or all",
        "",
    ]
    for name in names:
        lines += [f"# Part {name}", "", *_part_lines(parts.get(name))]
    return "\n".join(lines)


def _part_lines(part: Mapping[str, Any] | None) -> list[str]:
    if part is None:
        return ["Not run.", ""]
    lines = [f"Began {part['began']}, {part['seconds']:.0f} s. {part['about']}", ""]
    if "failed" in part:
        lines += [f"**It {part['failed']}; what was done before is here.**", ""]
    for step in part["steps"]:
        lines += _step_lines(step)
    return lines


def _step_lines(step: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    result = step.get("result")
    if "page" in step:
        _, page = step["page"].split("\n", 1)
        lines += [f"## {step['name']}", page]
    else:
        lines += [f"## {step['name']}", "", f"- command: `{step['command']}`", ""]
        if isinstance(result, dict) and "table" in result:
            lines += [*result["table"], ""]
        tests = step.get("tests") or (result if isinstance(result, dict) else {})
        if "passed" in tests:
            lines += _test_lines(tests)
    if "failed" in step:
        lines += [f"**Failed: {step['failed']}.**", "", *_quoted(step.get("said", ()))]
    return lines


def _test_lines(tests: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{tests[key]} {key}" for key in ("passed", "failed", "errors"))
    lines = [f"{counts}, {tests['skipped']} skipped.", ""]
    for failure in tests["failures"]:
        lines += [f"- {failure['name']}", "", *_quoted(failure["said"])]
    return lines


def _quoted(said: Seq[str]) -> list[str]:
    return ["```", *(line.replace("```", "'''") for line in said), "```", ""]
