"""Fuzzes readers of files by coverage, one process after the other.

    python -m tests.fuzz [--reader NAME] [--seconds N] [--seed S]

A finding does not end it: its shortest input and what happened are in build/fuzz/NAME/findings.
What reached new places stays in build/fuzz/NAME/corpus, where the next run goes on.
"""

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.process import BUILD, fuzz, keep_finding, own_folder
from tests.fuzz.readers import READERS

MOST_DEATHS = 20
_PROGRESS = re.compile(rb"#(\d+)\t.*? cov: (\d+) ft: \d+ corp: (\d+)/")


@dataclass
class Figures:
    """Inputs read, edges of the code reached, inputs kept, and kinds of findings."""

    inputs: int = 0
    edges: int = 0
    kept: int = 0
    findings: int = 0


def fuzzed(name: str, seconds: int, seed: int) -> Figures:
    """Fuzz one reader, in a new process after each that an input ended."""
    folder, figures, end = own_folder(name), Figures(), time.monotonic() + seconds
    (folder / "current").write_bytes(b"")
    for death in range(MOST_DEATHS):
        with tempfile.TemporaryDirectory() as place:
            left = max(1, round(end - time.monotonic()))
            status = _in_child(name, left, seed + death, Path(place))
        text = (folder / "log").read_bytes()
        progress = [tuple(map(int, each)) for each in _PROGRESS.findall(text)]
        if progress:
            figures.inputs += progress[-1][0]
            figures.edges = max(figures.edges, progress[-1][1])
            figures.kept = progress[-1][2]
        if status == 0:
            break
        data = (folder / "current").read_bytes()
        size = int.from_bytes(data[:8], "little")
        why = f"ended by {status}\n{text[-4000:].decode(errors='replace')}"
        keep_finding(folder, f"death{status}", data[8 : 8 + size], why)
        if time.monotonic() > end:
            break
    figures.findings = sum(each.suffix != ".txt" for each in (folder / "findings").iterdir())
    return figures


def _in_child(name: str, seconds: int, seed: int, place: Path) -> int:
    """Fuzz in a process that has the modules already; return its exit status, or minus a signal."""
    child = os.fork()
    if child == 0:
        log = os.open(own_folder(name) / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            fuzz(name, seconds, seed, place)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Fuzz; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--reader", choices=READERS, help="default: each of them")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="for each reader")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    options = parser.parse_args()
    found = 0
    for name in [options.reader] if options.reader else READERS:
        begin = time.monotonic()
        each = fuzzed(name, options.seconds, options.seed)
        found += each.findings
        print(
            f"{name:18} {each.inputs:>10,} inputs in {time.monotonic() - begin:5.0f} s, "
            f"{each.edges:6,} edges, {each.kept:5,} kept, {each.findings:3} findings",
            flush=True,
        )
    print(f"findings are in {BUILD}" if found else "nothing was found")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
