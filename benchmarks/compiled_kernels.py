"""Every GPU kernel compiled for every chip, without one: registers, shared memory, spills.

    python benchmarks/compiled_kernels.py --out runs/3.9.jsonl              # the Triton installed
    python benchmarks/compiled_kernels.py --out runs/3.9.jsonl --chip sm_86 # one chip, repeatable
    python benchmarks/compiled_kernels.py --table runs/3.9.jsonl runs/3.6.jsonl

What is compiled are the cases of tests/kernels/gpu/cases. A line is written for each case and chip
as soon as it is done, and a run that is started again goes on behind the last one; a form that was
compiled for another case is not compiled again. Exit status of the table: 0 where everything
compiles, fits and spills nothing, 1 otherwise.
"""

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.kernels.gpu.ahead_of_time import (
    CASES_FOLDER,
    CHIPS,
    Launch,
    compile_case,
    load_cases,
)

Line = dict[str, Any]


def main() -> int:
    """Compile, or print the table of compiled cases; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where lines of JSON are added")
    parser.add_argument("--chip", action="append", choices=CHIPS, help="only this one; repeatable")
    parser.add_argument("--cases", default="", metavar="TEXT", help="only cases whose name has it")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print these files")
    given = parser.parse_args()
    if given.table:
        lines = [json.loads(line) for path in given.table for line in path.open()]
        print("\n".join(table(lines)))
        return 1 if any(problems(each) for each in lines) else 0
    if given.out is None:
        parser.error("one of --out and --table is needed")
    compile_all(given.out, given.chip or list(CHIPS), given.cases)
    return 0


def compile_all(path: Path, chips: list[str], part: str) -> None:
    """Compile the cases without a line in `path`."""
    import triton

    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lines = [json.loads(line) for line in path.open()]
    done = {(each["case"], each["chip"]) for each in lines}
    cases = [case for file in sorted(CASES_FOLDER.glob("*.py")) for case in load_cases(file)]
    with path.open("a") as out:
        for chip in chips:
            known = [Launch(**launch) for line in lines for launch in _launches(line, chip)]
            meant = [case for case in cases if part in case.name]
            for case in (case for case in meant if (case.name, chip) not in done):
                line: Line = {"case": case.name, "chip": chip, "triton": triton.__version__}
                try:
                    launches = compile_case(case, CHIPS[chip], known)
                    known += launches
                    line["launches"] = [asdict(launch) for launch in launches]
                except Exception as error:  # any error of a compiler is a line of the table
                    line["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
                print(json.dumps(line), file=out, flush=True)


def problems(line: Line) -> list[str]:
    """Return the faults of a case on a chip."""
    if "error" in line:
        return [line["error"]]
    room, found = CHIPS[line["chip"]].shared_memory, []
    for launch in line["launches"]:
        if launch["spilled"]:
            found.append(f"{launch['kernel']} spills {launch['spilled']}")
        if launch["shared"] > room:
            found.append(f"{launch['kernel']} takes {launch['shared']:,} of {room:,} bytes shared")
    return found


def table(lines: list[Line]) -> list[str]:
    """Return a table with a line for each Triton and chip, and the cases with faults.

    Lines of one Triton and chip may be of several files.
    """
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["triton"], line["chip"]].append(line)
    order = {chip: index for index, chip in enumerate(CHIPS)}
    shown = [
        "| Triton | chip | cases | launches | spill | do not fit | do not compile "
        "| most shared, KB | of KB | most registers |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for version, chip in sorted(groups, key=lambda key: (key[0], order[key[1]])):
        group = groups[version, chip]
        launches = [launch for line in group for launch in line.get("launches", ())]
        room = CHIPS[chip].shared_memory
        counts = (
            len(group),
            len(launches),
            sum(each["spilled"] > 0 for each in launches),
            sum(each["shared"] > room for each in launches),
            sum("error" in line for line in group),
            max((each["shared"] for each in launches), default=0) >> 10,
            room >> 10,
            max((each["registers"] for each in launches), default=0),
        )
        shown.append(f"| {version} | {chip} | {' | '.join(map(str, counts))} |")
    wrong: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in lines:
        if found := problems(line):
            wrong[line["triton"], line["case"]].append(f"{line['chip']} {', '.join(found)}")
    shown.append("")
    for (version, case), each in sorted(wrong.items(), reverse=True):
        shown.append(f"- `{case}`, Triton {version}: {'; '.join(each)}")
    return shown


def _launches(line: Line, chip: str) -> list[dict[str, Any]]:
    return line.get("launches", []) if line["chip"] == chip else []


if __name__ == "__main__":
    sys.exit(main())
