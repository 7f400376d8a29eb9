"""Tests that hold an invariant, by their sources: those marked, and those whose names say so.

Each marked one has a control in `controls.toml`: a patch that switches off what it holds.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.fault import LISTS, ROOT

# What a test of an invariant is called: the same bytes whatever differs, or the figures of a plan.
SAYS_SO = re.compile(
    r"same_bytes|same_answers|same_however|stay_the_same|whatever_the|changes?_no_(bit|byte|answer)"
    r"|not_depend|nothing_depends|alone_equals_(row|chunk|token)|bytes_of_each_|bytes_are_those"
    r"|keeps?_\w+_bytes|give_the_bytes|bytes_of_(one|the)|among_others|chunks_equals"
    r"|(when|are)_preempted|and_preemption|(rows|rows_that|sequences)_give_way"
    r"|plan\w*_(says_(what|about)|counts)|is_its_run|within_the_budget|memory_is_flat"
)
LEFT_OUT = ("long", "gpu")  # marks of tests that a default run has not


@dataclass(frozen=True, slots=True)
class Held:
    """A function or class of tests. what: that of its mark, None without one."""

    test: str
    what: str | None

    @property
    def says_so(self) -> bool:
        """True if it is called like a test of an invariant."""
        return SAYS_SO.search(self.test.rpartition("::")[2]) is not None


@dataclass(frozen=True, slots=True)
class Excepted:
    """Tests that say so and have no control. untried: it is to come. by_reason: they need none."""

    untried: frozenset[str]
    by_reason: dict[str, str]

    @classmethod
    def read(cls) -> "Excepted":
        """Return those of the list of controls."""
        found = tomllib.loads((LISTS / "controls.toml").read_text())
        return cls(frozenset(found["untried"]), found["without_control"])


def default_tests() -> Iterator[Held]:
    """Yield the functions and classes of tests of a default run."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        yield from held_in(path.read_text(), str(path.relative_to(ROOT)))


def held_in(source: str, name: str) -> Iterator[Held]:
    """Yield those of a file `name`."""
    body = ast.parse(source).body
    of_all = [
        mark
        for each in body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
        for mark in _marks(each.value)
    ]
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and re.match("[tT]est", each.name):
            own = [mark for one in each.decorator_list for mark in _marks(one)]
            marks = dict([*of_all, *own])
            if not marks.keys() & {*LEFT_OUT}:
                yield Held(f"{name}::{each.name}", marks.get("invariant"))


def _marks(value: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield name and first argument of each mark of a decorator, or of `pytestmark`."""
    for each in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
        call, arguments = (each.func, each.args) if isinstance(each, ast.Call) else (each, [])
        prefix, _, mark = ast.unparse(call).rpartition(".")
        if prefix == "pytest.mark":
            yield mark, str(ast.literal_eval(arguments[0])) if mark == "invariant" else ""
