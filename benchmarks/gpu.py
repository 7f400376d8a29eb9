"""Everything there is to measure on a GPU, in parts of less than ten minutes each.

    PYTHONPATH=src python benchmarks/gpu.py                    # all parts, one after the other
    PYTHONPATH=src python benchmarks/gpu.py --part kernels     # one of them
    PYTHONPATH=src python benchmarks/gpu.py --list             # what would be run

Results go to DATE-gpu-NAME.json and .md under --out. Parts that ran before on the same date and GPU
stay in there, so that parts may be run one at a time. What failed is recorded with the last lines
it said, and the others go on. Exit status: 0 all is well, 1 something failed, 2 there is no GPU.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

# A part must be done in ten minutes, its start included.
PART_SECONDS = 570.0
# What a step may take of what is left of its part, unless it is the last one.
SHARE_OF_LEFT = 0.65
LAST_LINES = 15
GPU_FACTS = (
    "name,memory.total,driver_version,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,"
    "clocks.memory,temperature.gpu,utilization.gpu,memory.used"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One command: `pagedrun ARGUMENTS --json`, or `pytest ARGUMENTS` where `is_pytest`."""

    name: str
    arguments: str
    is_pytest: bool = False

    def command(self, junit: Path) -> list[str]:
        """Return what is run; pytest writes what came of it to `junit`."""
        words = self.arguments.split()
        if self.is_pytest:
            return [sys.executable, "-m", "pytest", *words, f"--junitxml={junit}"]
        return [sys.executable, "-m", "pagedrun", *words, "--json"]

    @property
    def shown(self) -> str:
        """The command as it can be typed."""
        return f"{'pytest' if self.is_pytest else 'pagedrun'} {self.arguments}"


ENGINE = (
    "--device cuda --dtype bfloat16 --max-num-seqs 1024 --max-num-batched-tokens 16384 "
    "--block-size 64 --gpu-memory-utilization 0.9"
)
# As nano-vLLM's benchmark has it, nothing shared; and what pagedrun is for.
UNSHARED = "--rows 256 --shared 0 --unique 100:1024 --output 100:1024 --max-model-len 2048"
SHARED = "--rows 1024 --shared 4096 --unique 128 --output 128 --max-model-len 4352"
# Without the options of pyproject.toml: they ask for plugins that may not be there.
PYTEST = "-o addopts= --import-mode=importlib --continue-on-collection-errors -p no:cacheprovider"
# Heads, head size and block size with which the kernels of vLLM were measured.
LLAMA_70B = "--heads 64 --kv-heads 8 --head-dim 128 --block-size 16"


def _throughput(shape: str, repeat: int) -> tuple[Step, ...]:
    command = f"bench throughput --shape {shape} {ENGINE} --repeat {repeat}"
    return (
        Step("nothing shared", f"{command} {UNSHARED}"),
        Step("4,096 tokens shared", f"{command} {SHARED}"),
    )


PARTS: dict[str, tuple[Step, ...]] = {
    "tests": (Step("tests", f"-m gpu -q {PYTEST} tests", is_pytest=True),),
    "kernels": (
        Step("qwen3-0.6b", "bench kernels --device cuda --budget 270"),
        Step(
            "heads of Llama 70B",
            f"bench kernels --device cuda {LLAMA_70B} --only decode --budget 100",
        ),
    ),
    "throughput-small": _throughput("qwen3-0.6b", repeat=3),
    "throughput-large": _throughput("qwen3-8b", repeat=2),
}


def run_step(step: Step, seconds: float) -> dict[str, Any]:
    """Run a step for at most `seconds`; return its result, or how it failed."""
    began = perf_counter()
    outcome: dict[str, Any] = {"name": step.name, "command": step.shown}
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        try:
            done = subprocess.run(
                step.command(junit),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": _python_path(), "PAGEDRUN_DEBUG": "1"},
                capture_output=True,
                text=True,
                timeout=max(seconds, 1.0),
            )
        except subprocess.TimeoutExpired as error:
            outcome |= {
                "failed": f"stopped after {seconds:.0f} s",
                "said": _tail(error.stderr or error.stdout),
            }
        else:
            outcome |= _outcome(step, done, junit)
    return {**outcome, "seconds": round(perf_counter() - began, 1)}


def _outcome(step: Step, done: "subprocess.CompletedProcess[str]", junit: Path) -> dict[str, Any]:
    """Return what a command that ended has to say."""
    failed = {"failed": f"exit status {done.returncode}", "said": _tail(done.stderr or done.stdout)}
    if step.is_pytest:
        try:
            return {"tests": read_junit(junit), **({} if done.returncode == 0 else failed)}
        except (OSError, xml.ParseError):
            return failed
    if done.returncode != 0:
        return failed
    try:
        return {"result": json.loads(done.stdout)}
    except json.JSONDecodeError as error:
        return {**failed, "failed": f"its result is no JSON ({error})"}


def _tail(text: str | bytes | None) -> list[str]:
    """Return the last lines of what was said: of a traceback, what went wrong.

    The folder of the checkout is left out of the answer.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return (text or "").replace(str(ROOT), ".").rstrip().splitlines()[-LAST_LINES:]


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT / "src"), *([inherited] if inherited else [])])


def read_junit(path: Path) -> dict[str, Any]:
    """Return how many tests there were, and the failed ones with the last lines they said."""
    counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
    failures: list[dict[str, Any]] = []
    for case in xml.parse(path).iter("testcase"):
        kinds = {"failure": "failed", "error": "errors", "skipped": "skipped"}
        ended = next((each for each in case if each.tag in kinds), None)
        counts["passed" if ended is None else kinds[ended.tag]] += 1
        if ended is not None and ended.tag != "skipped":
            name = f"{case.get('classname')}::{case.get('name')}"
            failures.append({"name": name, "said": _tail(ended.text or ended.get("message"))})
    return {**counts, "failures": failures}


def run_part(name: str) -> Iterator[dict[str, Any]]:
    """Run a part step by step; yield it as far as it has come. Later steps get what is left."""
    began, started = perf_counter(), datetime.now(UTC)
    steps: list[dict[str, Any]] = []
    for index, step in enumerate(PARTS[name]):
        left = PART_SECONDS - (perf_counter() - began)
        share = left if index == len(PARTS[name]) - 1 else left * SHARE_OF_LEFT
        print(f"{name}: {step.shown}", file=sys.stderr, flush=True)
        steps.append(run_step(step, share))
        told = steps[-1].get("failed", "done")
        print(f"{name}: {told}, {steps[-1]['seconds']} s", file=sys.stderr, flush=True)
        yield {
            "began": started.isoformat(timespec="seconds"),
            "seconds": round(perf_counter() - began, 1),
            "gpu_after": gpu_facts(),
            "steps": steps,
        }


def gpu_facts() -> dict[str, str] | None:
    """Return what nvidia-smi says of the first GPU, None where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = done.stdout.splitlines()[0].split(",") if done.stdout else []
    return dict(zip(GPU_FACTS.split(","), map(str.strip, values), strict=False))


def describe_machine(gpu: str) -> dict[str, Any]:
    """Return the machine and the versions that matter here."""
    from importlib.metadata import PackageNotFoundError, version

    from pagedrun.paged.report.record.hardware import describe_hardware

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    hardware = describe_hardware("cuda")
    packages = ("triton", "numpy", "pytest")
    hardware["versions"] |= {package: installed(package) for package in packages}
    return {**hardware, "gpu": gpu, "gpu_before": gpu_facts()}


def merged(before: dict[str, Any] | None, machine: dict[str, Any], date: str) -> dict[str, Any]:
    """Return a result without parts, or with those of one that was written before."""
    parts = before["parts"] if before else {}
    return {"date": date, "machine": machine, "parts": parts}


def read_result(path: Path) -> dict[str, Any] | None:
    """Return a result written before, None if there is none; a broken one is set aside."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result if isinstance(result.get("parts"), dict) else None
    except FileNotFoundError:
        return None
    except ValueError:
        path.replace(path.with_suffix(".broken"))
        return None


def write_result(stem: Path, result: dict[str, Any]) -> None:
    """Write STEM.json and STEM.md."""
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    stem.with_name(f"{stem.name}.json").write_text(text, encoding="utf-8")
    stem.with_name(f"{stem.name}.md").write_text(as_markdown(result), encoding="utf-8")


def as_markdown(result: dict[str, Any]) -> str:
    """Return the whole result as a page."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {each}" for name, each in machine["versions"].items() if each)
    facts = ", ".join(f"{key} {value}" for key, value in (machine["gpu_before"] or {}).items())
    lines = [
        f"# {machine['gpu']}, {result['date']}",
        "",
        f"- machine: {machine['processor']}, {machine['threads']} threads",
        f"- GPU: {facts or machine['gpu']}",
        f"- versions: python {machine['python']}, {versions}",
        "- command: `python benchmarks/gpu.py`, one part at a time or all",
        "",
    ]
    for name in PARTS:
        part = result["parts"].get(name)
        if part is None:
            lines += [f"# {name}", "", "Not run.", ""]
            continue
        lines += [f"# {name}", "", f"Began {part['began']}, {part['seconds']:.0f} s.", ""]
        for step in part["steps"]:
            lines += _step_lines(step)
    return "\n".join(lines)


def _step_lines(step: dict[str, Any]) -> list[str]:
    from pagedrun.cli.bench.publish import markdown
    from pagedrun.cli.bench.view import VIEWS
    from pagedrun.paged.bench.result import Measured, Result

    lines: list[str] = []
    if "result" in step:
        result: Result[Measured] = Result.of_dict(step["result"])
        view = VIEWS[result.frame["bench"]]
        lines += [markdown(step["name"], view.lines(result), view.sheets(result.figures)), ""]
    else:
        lines += [f"## {step['name']}", "", f"- command: `{step['command']}`", ""]
    if "tests" in step:
        tests = step["tests"]
        counts = ", ".join(f"{tests[key]} {key}" for key in ("passed", "failed", "errors"))
        lines += [f"{counts}, {tests['skipped']} skipped.", ""]
        for failure in tests["failures"]:
            lines += [f"- {failure['name']}", "", *_quoted(failure["said"])]
    if "failed" in step:
        lines += [f"**Failed: {step['failed']}.**", "", *_quoted(step["said"])]
    return lines


def _quoted(said: Seq[str]) -> list[str]:
    return ["```", *(line.replace("```", "'''") for line in said), "```", ""]


def main(arguments: Seq[str] | None = None) -> int:
    """Run the parts that were asked for and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="run this part; repeatable")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    given = parser.parse_args(arguments)
    if given.list:
        for name, steps in PARTS.items():
            print(*(f"{name}: {step.shown}" for step in steps), sep="\n")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("Error: torch sees no GPU here, and this measures nothing else.", file=sys.stderr)
        return 2
    # Asked of another process: this one must not keep a piece of the GPU's memory.
    named = "import torch; print(torch.cuda.get_device_name())"
    gpu = subprocess.run([sys.executable, "-c", named], capture_output=True, text=True).stdout
    return run_parts(given.part or list(PARTS), given.out, gpu.strip() or "GPU")


def run_parts(names: Seq[str], out: Path, gpu: str) -> int:
    """Run parts one after the other, keep what came of each, and return the exit status."""
    date = datetime.now(UTC).date().isoformat()
    out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    stem = out / f"{date}-gpu-{slug}"
    result = merged(read_result(out / f"{stem.name}.json"), describe_machine(gpu), date)
    for name in names:
        for part in run_part(name):
            result["parts"][name] = part
            write_result(stem, result)
    print(f"Written: {stem}.json and .md", file=sys.stderr)
    steps = [step for name in names for step in result["parts"][name]["steps"]]
    return 1 if any("failed" in step for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
