"""Plants faults one at a time, and says which test notices each.

    python -m tests.faults [NAME ...] [--room ROOM] [--sample N --seed S] [--processes N] [--narrow]
        [--mutants]

Each runs in a copy of the checkout: first the tests that the fault names, then, unless `--narrow`,
the whole default suite. A test that found a fault must pass in a copy without one. The outcomes
are written to build/faults.jsonl. The status is 1 if a fault survived, or is none: an anchor that
is dead, a patch that is no Python, a test that fails anyway.

With `--mutants` the faults are those that mutmut makes; the tests are then those that import the
file, or that planted faults of it name, and those of its room.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any, Protocol, TypeVar

from tests.faults.fault import ROOT, DeadAnchorError, Fault, all_faults

BUILD = ROOT / "build" / "faults"
OUTCOMES = ROOT / "build" / "faults.jsonl"
# Of the house, of these lists: they read the source, and would find every fault.
LEFT_OUT = ("tests/house", "tests/faults")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - (.*))?$", re.M)
# A test that hangs has noticed the fault, and so have tests that take so much of a processor.
MOST_SECONDS, MOST_PROCESSOR_SECONDS = 240, 3600
MOST_OF_A_MUTANT = 60
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
    """Copy of the checkout in which faults are planted; not shared by threads.

    most_seconds: of a processor, for the tests that a fault names. must_load: a fault with which
    tests cannot be loaded is none; otherwise that notices it.
    """

    def __init__(self, folder: Path, *, most_seconds: int, must_load: bool) -> None:
        self._folder = folder
        self._most_seconds, self._must_load = most_seconds, must_load
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

    def try_fault(self, fault: Fault, wide: Sequence[str]) -> Outcome:
        """Plant a fault, run its tests and then, if none fails, `wide`; remove it."""
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
            self._run_tests(outcome, fault.tests, self._most_seconds)
            if outcome.verdict == SURVIVED and wide:
                self._run_tests(outcome, wide, MOST_PROCESSOR_SECONDS)
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
        _, printed = self._pytest(tests, MOST_PROCESSOR_SECONDS)
        return {name for name, _ in FAILED.findall(printed)}

    def _run_tests(self, outcome: Outcome, arguments: Sequence[str], seconds: int) -> None:
        status, printed = self._pytest(("-x", *arguments), seconds)
        failed = FAILED.findall(printed)
        if status == 1 and failed:
            outcome.verdict, (outcome.test, outcome.note) = KILLED, failed[0]
        elif status in (-signal.SIGXCPU, -signal.SIGKILL):
            outcome.verdict, outcome.note = KILLED, "it takes a processor's time without an end"
        elif status != 0:
            outcome.verdict = NO_FAULT if self._must_load else KILLED
            outcome.note = printed[-1500:]

    def _pytest(self, arguments: Sequence[str], seconds: int) -> tuple[int, str]:
        options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", f"--timeout={MOST_SECONDS}"]
        printed = self._folder / "build" / "printed"
        printed.unlink(missing_ok=True)
        asked = [[*options, "--hypothesis-profile=no-shrinking", *arguments], str(printed), seconds]
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        print(json.dumps(asked), file=self._warm.stdin, flush=True)
        return int(self._warm.stdout.readline()), printed.read_text(errors="replace")

    def close(self) -> None:
        """End the process that runs tests, remove the copy."""
        self._warm.communicate()
        shutil.rmtree(self._folder)


def outcomes_of(
    faults: Sequence[Fault],
    processes: int,
    wide: Callable[[Fault], Sequence[str]],
    **limits: Any,
) -> Iterator[Outcome]:
    """Yield the outcome of each fault as it ends, then those whose test fails without a fault.

    wide: which tests follow a fault's own. limits: see `Copy`.
    """
    own = threading.local()
    copies: list[Copy] = []

    def take_copy() -> None:
        own.copy = Copy(BUILD / f"copy-{threading.get_ident()}", **limits)
        copies.append(own.copy)

    killed: list[Outcome] = []
    with ThreadPoolExecutor(processes, initializer=take_copy) as pool:
        for outcome in pool.map(lambda fault: own.copy.try_fault(fault, wide(fault)), faults):
            if outcome.test:
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


def nothing(_: Fault) -> Sequence[str]:
    """Return no arguments: only a fault's own tests are run."""
    return ()


def whole_suite(_: Fault) -> Sequence[str]:
    """Return the arguments of pytest for all default tests."""
    return ("tests", *(f"--ignore={name}" for name in LEFT_OUT), "--dist", "worksteal", "-n", "2")


class Named(Protocol):
    """What the command line can name: a fault, or a mutant, which becomes one."""

    @property
    def name(self) -> str: ...
    @property
    def room(self) -> str: ...


Each = TypeVar("Each", bound=Named)


def chosen(every: Sequence[Each], options: argparse.Namespace) -> Sequence[Each]:
    """Return those that the command line names; the name of a control is that of all its faults."""
    names = set(options.names)

    def names_of(each: Each) -> set[str]:
        return {each.name, each.name.partition("@")[0]}

    if unknown := names.difference(*map(names_of, every)):
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}")
    if names:
        every = [each for each in every if names & names_of(each)]
    if options.room:
        every = [each for each in every if each.room in options.room]
    if options.sample:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    return every


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
    parser.add_argument("--mutants", action="store_true", help="faults that mutmut makes")
    options = parser.parse_args()
    wide: Callable[[Fault], Sequence[str]] = whole_suite
    limits: dict[str, Any] = {"most_seconds": MOST_PROCESSOR_SECONDS, "must_load": True}
    if options.mutants:
        from tests.faults.mutants import all_mutants, whole_room  # mutmut is an extra

        mutants = chosen([*all_mutants(options.room)], options)
        faults: Sequence[Fault] = [mutant.fault() for mutant in mutants]
        wide, limits = whole_room, {"most_seconds": MOST_OF_A_MUTANT, "must_load": False}
    else:
        faults = chosen(all_faults(), options)
    if options.narrow:
        wide = nothing
    last: dict[str, Outcome] = {}
    OUTCOMES.parent.mkdir(exist_ok=True)
    with OUTCOMES.open("w") as file:
        for outcome in outcomes_of(faults, options.processes, wide, **limits):
            last[outcome.fault] = outcome
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            found = outcome.test or ("ran" if outcome.ran else "")
            print(f"{outcome.verdict:12} {outcome.seconds:6.1f} s  {outcome.fault}  {found}")
            if outcome.verdict != KILLED:
                print(indent(outcome.note or outcome.promise, " " * 13))
            sys.stdout.flush()
    print(f"\n{summary([*last.values()])}")
    return int(any(each.verdict != KILLED for each in last.values()))


if __name__ == "__main__":
    sys.exit(main())
