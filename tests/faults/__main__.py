"""Plants faults one at a time, and says which test notices each.

    python -m tests.faults [NAME ...] [--room ROOM] [--sample N --seed S] [--processes N] [--narrow]

Each runs in a copy of the checkout: first the tests that the fault names, then, unless `--narrow`,
the whole default suite. A test that found a fault must pass in a copy without one. The outcomes
are written to build/faults.jsonl. The status is 1 if a fault survived, or is none: an anchor that
is dead, a patch that is no Python, a test that fails anyway.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.fault import ROOT, DeadAnchorError, Fault, all_faults

BUILD = ROOT / "build" / "faults"
OUTCOMES = ROOT / "build" / "faults.jsonl"
# Of the house, of these lists: they read the source, and would find every fault.
LEFT_OUT = ("tests/house", "tests/faults")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - (.*))?$", re.M)
MOST_SECONDS = 240  # for a test; one that hangs has noticed the fault
KILLED, SURVIVED, NOT_REACHED, NO_FAULT = "killed", "survived", "not reached", "no fault"


@dataclass(slots=True)
class Outcome:
    """What became of a fault.

    test: the one that noticed it. ran: whether the patched code ran, None if it is compiled code.
    note: the test's message, or why it is no fault.
    """

    fault: str
    room: str
    file: str
    promise: str
    verdict: str
    test: str = ""
    note: str = ""
    ran: bool | None = None
    seconds: float = field(default=0.0)


class Copy:
    """Copy of the checkout in which faults are planted; not shared by threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = int(time.time())
        shutil.rmtree(folder, ignore_errors=True)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "kernels").rglob("*.nb[ic]")]
        for name in [*filter(None, names.split("\0")), *compiled]:
            if (ROOT / name).exists():  # a removed file is listed until the commit
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        paths = f"{folder / 'src'}{os.pathsep}{folder}"
        self._warm = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.warm_pytest"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "400", "NO_COLOR": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def try_fault(self, fault: Fault, *, narrow: bool) -> Outcome:
        """Plant a fault, run the tests, remove it."""
        began = time.monotonic()
        outcome = Outcome(fault.name, fault.room, fault.file, fault.promise, SURVIVED)
        path, mark = self._folder / fault.file, self._folder / "build" / "fault-ran"
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.unlink(missing_ok=True)
        source, stat = path.read_text(), path.stat()
        try:
            wrong, has_mark = fault.marked(source, mark)
        except (DeadAnchorError, SyntaxError) as error:
            outcome.verdict, outcome.note = NO_FAULT, str(error)
            return outcome
        path.write_text(wrong)
        # Python and Numba know a source by size and second: two must not have both alike.
        self._times += 2
        os.utime(path, (self._times, self._times))
        try:
            self._run_tests(outcome, fault.tests)
            if outcome.verdict == SURVIVED and not narrow:
                left_out = [f"--ignore={name}" for name in LEFT_OUT]
                self._run_tests(outcome, ("tests", *left_out, "--dist", "worksteal", "-n", "2"))
        finally:
            path.write_text(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        outcome.ran = mark.exists() if has_mark else None
        if outcome.verdict == SURVIVED and outcome.ran is False:
            outcome.verdict = NOT_REACHED
        if outcome.verdict == KILLED and outcome.ran is False:
            outcome.verdict, outcome.note = NO_FAULT, "a test failed, and the patch never ran"
        outcome.seconds = round(time.monotonic() - began, 1)
        return outcome

    def failing(self, tests: Sequence[str]) -> set[str]:
        """Return which of the tests fail without a fault."""
        _, printed = self._pytest(tests)
        return {name for name, _ in FAILED.findall(printed)}

    def _run_tests(self, outcome: Outcome, arguments: Sequence[str]) -> None:
        status, printed = self._pytest(("-x", *arguments))
        failed = FAILED.findall(printed)
        if status == 1 and failed:
            outcome.verdict, (outcome.test, outcome.note) = KILLED, failed[0]
        elif status != 0:
            outcome.verdict, outcome.note = NO_FAULT, printed[-1500:]

    def _pytest(self, arguments: Sequence[str]) -> tuple[int, str]:
        options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", f"--timeout={MOST_SECONDS}"]
        printed = self._folder / "build" / "printed"
        printed.unlink(missing_ok=True)
        asked = [[*options, "--hypothesis-profile=no-shrinking", *arguments], str(printed)]
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        print(json.dumps(asked), file=self._warm.stdin, flush=True)
        return int(self._warm.stdout.readline()), printed.read_text(errors="replace")

    def close(self) -> None:
        """End the process that runs tests, remove the copy."""
        self._warm.communicate()
        shutil.rmtree(self._folder)


def outcomes_of(faults: Sequence[Fault], processes: int, *, narrow: bool) -> Iterator[Outcome]:
    """Yield the outcome of each fault as it ends, then those whose test fails without a fault."""
    own = threading.local()
    copies: list[Copy] = []

    def take_copy() -> None:
        own.copy = Copy(BUILD / f"copy-{threading.get_ident()}")
        copies.append(own.copy)

    killed: list[Outcome] = []
    with ThreadPoolExecutor(processes, initializer=take_copy) as pool:
        for outcome in pool.map(lambda fault: own.copy.try_fault(fault, narrow=narrow), faults):
            if outcome.verdict == KILLED:
                killed.append(outcome)
            yield outcome
    if killed:
        fails_anyway = copies[0].failing(sorted({each.test for each in killed}))
        for outcome in killed:
            if outcome.test in fails_anyway:
                outcome.verdict, outcome.note = NO_FAULT, "this test fails without the fault too"
                yield outcome
    for copy in copies:
        copy.close()


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the counts of each room."""
    verdicts = (KILLED, SURVIVED, NOT_REACHED, NO_FAULT)
    counts = Counter((each.room, each.verdict) for each in outcomes)
    lines = [f"{'room':14}" + "".join(f"{verdict:>13}" for verdict in verdicts)]
    for room in sorted({each.room for each in outcomes}):
        lines.append(f"{room:14}" + "".join(f"{counts[room, each]:13}" for each in verdicts))
    totals = [sum(each.verdict == verdict for each in outcomes) for verdict in verdicts]
    return "\n".join([*lines, f"{'together':14}" + "".join(f"{total:13}" for total in totals)])


def chosen(options: argparse.Namespace) -> list[Fault]:
    """Return the faults that the command line names."""
    faults = all_faults()
    names = set(options.names)
    known = [name for fault in faults for name in (fault.name, fault.name.partition("@")[0])]
    if unknown := names.difference(known):
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}")
    if names:  # a control's name is that of its faults, one for each test
        faults = [fault for fault in faults if names & {fault.name, fault.name.partition("@")[0]}]
    if options.room:
        faults = [fault for fault in faults if fault.room in options.room]
    if options.sample:
        faults = random.Random(options.seed).sample(faults, min(options.sample, len(faults)))
    return faults


def main() -> int:
    """Try the chosen faults; 1 if any is not killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--room", action="append", help="name of a list; may be given several times"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="as many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    parser.add_argument("--narrow", action="store_true", help="only the tests that a fault names")
    options = parser.parse_args()
    faults = chosen(options)
    last: dict[str, Outcome] = {}
    OUTCOMES.parent.mkdir(exist_ok=True)
    with OUTCOMES.open("w") as file:
        for outcome in outcomes_of(faults, options.processes, narrow=options.narrow):
            last[outcome.fault] = outcome
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            found = outcome.test or ("ran" if outcome.ran else "")
            print(f"{outcome.verdict:12} {outcome.seconds:6.1f} s  {outcome.fault}  {found}")
            if outcome.verdict == NO_FAULT:
                print(f"             {outcome.note}")
            sys.stdout.flush()
    print(f"\n{summary([*last.values()])}")
    return int(any(each.verdict != KILLED for each in last.values()))


if __name__ == "__main__":
    sys.exit(main())
