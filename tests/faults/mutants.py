"""Mutants: planted faults that mutmut's operators make, of rooms that decide without tensors.

A mutant becomes a `Fault`, with the whole lines around it: what is found to survive can be copied
into a list. Left out by rule is what no test should hold: annotations, imports, decorators,
docstrings, names with two underscores, assertions (they always hold, and what is weaker holds too),
errors raised and warnings, text with a blank in it (it is for people). So is None for any value,
and a call without an argument in its place: mypy refuses nearly all.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import libcst as cst
from mutmut.mutation.mutators import (
    mutation_operators,
    operator_arg_removal,
    operator_assignment,
)

from tests.faults.fault import ROOT, Fault, all_faults
from tests.support.processor_time import measured

FOLDERS = {
    "cache": "paged/cache",
    "scheduling": "paged/scheduling",
    "planning": "paged/planning",
    "files": "paged/files",
    "output": "paged/job/output",
    "text": "paged/text",
}
MOST_SECONDS = 10.0  # of tests for every mutant of a file
LEFT_OUT = (
    cst.Annotation,
    cst.Assert,
    cst.Decorator,
    cst.Import,
    cst.ImportFrom,
    cst.Raise,
)
# Calls of which nothing is changed, and arguments: what a cast says is an annotation, what `strict`
# asks is an assertion.
CALLS = ("logger", "warnings", "assert_never", "cast", "TypeVar", "NewType")
ARGUMENTS = ("strict", "stacklevel")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one node. name: the file, and the number of the mutant in it."""

    room: str
    name: str
    file: str
    module: Any
    node: Any
    changed: Any

    def fault(self) -> Fault:
        """Return it as a patch, with as many lines around as make its place the only one."""
        source = self.module.code
        wrong = self.module.deep_replace(self.node, self.changed).code
        before, after = changed_lines(source, wrong)
        lines = difflib.ndiff(before.splitlines(), after.splitlines())
        change = "\n".join(line for line in lines if line[0] in "-+")
        return Fault(self.room, self.name, self.file, change, quick_tests(self.file), before, after)


def all_mutants(rooms: list[str] | None = None) -> Iterator[Mutant]:
    """Yield the mutants of these rooms, of all without an argument, in the order of their files."""
    for room in rooms or FOLDERS:
        for path in sorted((ROOT / FOLDERS[room]).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            module = cst.parse_module(path.read_text())
            for number, (node, changed) in enumerate(changes(module)):
                yield Mutant(room, f"{file}#{number}", file, module, node, changed)


def changes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each node below this one that an operator changes, with what it changes it to."""
    if _is_left_out(node):
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and operator is not operator_assignment:
            for changed in operator(node):
                if operator is not operator_arg_removal or _is_optional(node, changed):
                    yield node, changed
    for child in node.children:
        yield from changes(child)


def _is_left_out(node: Any) -> bool:
    match node:
        case (
            cst.Call(func=cst.Name(value=name))
            | cst.Call(func=cst.Attribute(value=cst.Name(value=name)))
        ):
            return name in CALLS
        case cst.Arg(keyword=cst.Name(value=name)):
            return name in ARGUMENTS
        case cst.SimpleString(value=text):
            return " " in text
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            return str(name).startswith("__")
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            return True
    return isinstance(node, LEFT_OUT)


def _is_optional(call: Any, shorter: Any) -> bool:
    """Return whether an argument is gone that has a name, so that there may be a default."""
    names = [each.keyword.value if each.keyword else None for each in call.args]
    left = [each.keyword.value if each.keyword else None for each in shorter.args]
    gone = [name for name in names if name and name not in left]
    return gone != [] and gone[0] not in ARGUMENTS


def changed_lines(source: str, wrong: str) -> tuple[str, str]:
    """Return the lines that differ in both texts, from one that occurs once in the source on."""
    old, new = source.splitlines(keepends=True), wrong.splitlines(keepends=True)
    start = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    alike = zip(reversed(old[start:]), reversed(new[start:]), strict=False)
    end = next((i for i, (a, b) in enumerate(alike) if a != b), min(len(old), len(new)) - start)
    while True:
        before = "".join(old[start : len(old) - end])
        if before and source.count(before) == 1:
            return before, "".join(new[start : len(new) - end])
        start, end = max(start - 1, 0), max(end - 1, 0)


@cache
def quick_tests(file: str) -> tuple[str, ...]:
    """Return the tests for every mutant of a file, the quickest first, up to `MOST_SECONDS`.

    They are those that planted faults of the file name, and those that import it.
    """
    seconds = measured()["files"]
    named = _named_by_faults()[file]
    files = {*_importing(file), *(test for test in named if test in seconds)}
    weights = {test: seconds.get(test, 0.0) for test in files}
    for test in named:  # single ones are quick, folders are not
        if "::" in test and test.split("::")[0] not in files:
            weights[test] = 1.0
    quick = sorted(weights, key=lambda test: (weights[test], test))
    spent = accumulate(weights[test] for test in quick)
    chosen = [test for test, total in zip(quick, spent, strict=True) if total <= MOST_SECONDS]
    return tuple(chosen or quick[:1]) or (_tests_of_room(file),)


def whole_room(fault: Fault) -> tuple[str, ...]:
    """Return the tests for a mutant that those of its file have not noticed."""
    room = _tests_of_room(fault.file)
    return (room, *(test for test in _importing(fault.file) if not test.startswith(f"{room}/")))


def _tests_of_room(file: str) -> str:
    folder = next(folder for folder in FOLDERS.values() if file.startswith(f"{folder}/"))
    return folder.replace("paged", "tests", 1)


@cache
def _importing(file: str) -> tuple[str, ...]:
    module = f"pagedrun.{file.removesuffix('.py').replace('/', '.')} import"
    return tuple(name for name, text in _texts_of_tests().items() if module in text)


@cache
def _named_by_faults() -> defaultdict[str, set[str]]:
    tests: defaultdict[str, set[str]] = defaultdict(set)
    for fault in all_faults():
        tests[fault.file].update(fault.tests)
    return tests


@cache
def _texts_of_tests() -> dict[str, str]:
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}
