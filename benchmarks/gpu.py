"""Everything there is to measure on a GPU, in parts of less than nine minutes each.

    python benchmarks/gpu.py                    # all parts, one after the other
    python benchmarks/gpu.py --part A           # one of them; repeatable
    python benchmarks/gpu.py --list             # what would be run
    python benchmarks/gpu.py --dry-run          # the parts with small steps on a CPU

Each part is a process of its own, which is ended at its limit. It says on stderr and in a log what
its commands say, and writes what came of them after each: DATE-gpu-NAME-PART.json and .log, beside
the page of all parts of the day, DATE-gpu-NAME.md. They go to the folder that $OUT names, else to
benchmarks/results. Whatever happens to a part, the others are run. Exit status: 0 all is well,
1 something failed, 2 there is no GPU.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence as Seq
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.on_gpu.parts import (
    PartRun,
    Parts,
    as_markdown,
    describe_machine,
    end_group,
    gpu_parts,
    interrupted,
    part_path,
    read_part,
    read_parts,
    small_parts,
    write_json,
)

GRACE_S = 20.0  # of a part behind its limit, which it keeps by itself


def main(arguments: Seq[str] | None = None) -> int:
    """Run the parts that were asked for and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own = os.environ.get("OUT")
    out = Path(own) if own else ROOT / "benchmarks" / "results"
    parser.add_argument("--part", action="append", metavar="NAME", help="only this; repeatable")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR")
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    parser.add_argument("--json", action="store_true", help="with --list: as --parts reads them")
    parser.add_argument("--dry-run", action="store_true", help="small steps, on a CPU")
    parser.add_argument("--parts", type=Path, metavar="FILE", help="other parts, as JSON")
    parser.add_argument("--within", metavar="STEM", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    on_cpu = given.dry_run or given.parts is not None
    parts = read_parts(given.parts) if given.parts else small_parts() if on_cpu else gpu_parts()
    names = given.part or list(parts)
    for name in names:
        if name not in parts:
            parser.error(f"--part {name}: choose from {', '.join(parts)}")
    if given.list:
        print_parts(parts, as_json=given.json)
        return 0
    if given.within is not None:  # the process of one part
        return 0 if PartRun(names[0], parts[names[0]], given.within).run() else 1
    if not on_cpu and not has_gpu():
        print("Error: torch sees no GPU here, and this measures nothing else.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = ["--dry-run"] if given.dry_run else []
    chosen += ["--parts", str(given.parts)] if given.parts else []
    return Driver(parts, given.out, chosen, on_cpu=on_cpu).run(names)


def print_parts(parts: Parts, *, as_json: bool) -> None:
    """Print the commands."""
    if as_json:
        print(json.dumps({name: part.to_dict() for name, part in parts.items()}, indent=1))
        return
    for name, part in parts.items():
        print(f"{name}: {part.limit_s:.0f} s at most")
        print(*(f"{name}: {step.shown}" for step in part.steps), sep="\n")


def has_gpu() -> bool:
    """Return whether torch finds a GPU, in another process: this one takes no GPU memory."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def gpu_name() -> str:
    """Return the name of the GPU."""
    code = "import torch; print(torch.cuda.get_device_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "GPU"


class Driver:
    """Runs parts in processes; `options` select the same parts there."""

    def __init__(self, parts: Parts, out: Path, options: Seq[str], *, on_cpu: bool) -> None:
        self._parts = parts
        self._options = options
        self._date = datetime.now(UTC).date().isoformat()
        name = "dry run" if on_cpu else gpu_name()
        self._machine = describe_machine(name, "cpu" if on_cpu else "cuda")
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self._stem = out.resolve() / f"{self._date}-gpu-{slug}"

    def run(self, names: Seq[str]) -> int:
        """Run the parts one after the other; return the exit status."""
        is_well = True
        for name in names:
            is_well &= self._run_part(name)
            self._write_page()
        print(f"Written: {self._stem}.md", file=sys.stderr)
        return 0 if is_well else 1

    def _run_part(self, name: str) -> bool:
        """Run a part to its end or its limit; return whether all of it succeeded."""
        path = part_path(self._stem, name)
        path.unlink(missing_ok=True)
        command = [sys.executable, __file__, *self._options, "--part", name]
        process = subprocess.Popen(
            [*command, "--within", str(self._stem)], cwd=ROOT, process_group=0
        )
        status: int | None = None
        try:
            status = process.wait(self._parts[name].limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process.pid)
            process.wait()
            self._end_step(path)
        result = read_part(path)
        if result is not None and result.get("is_complete"):
            return status == 0
        why = "took too long" if status is None else f"ended with status {status}"
        print(f"{name}: it {why}", file=sys.stderr, flush=True)
        began = datetime.now(UTC).isoformat(timespec="seconds")
        empty: dict[str, Any] = {"began": began, "seconds": 0.0, "about": "", "steps": []}
        write_json(path, interrupted(result or empty, why))
        return False

    def _end_step(self, path: Path) -> None:
        """End processes left by a part that has ended."""
        result = read_part(path)
        if result is not None and result.get("running"):
            end_group(result["running"]["group"])

    def _write_page(self) -> None:
        results = {name: read_part(part_path(self._stem, name)) for name in self._parts}
        text = as_markdown(self._date, self._machine, list(self._parts), results)
        self._stem.with_name(f"{self._stem.name}.md").write_text(text, encoding="utf-8")


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
