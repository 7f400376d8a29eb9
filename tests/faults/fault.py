"""Planted faults: small wrong patches of the source, each of which some test must notice.

They are written in the TOML files beside this module, a file for each room of the house. A fault
replaces `before`, which occurs once in its file, by `after`.

A control has `each` in place of `tests`: every one of these tests must notice it. It stands for as
many faults, `NAME@TEST`, of one test each.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent
# Their functions are compiled or interpreted from their sources, in which a mark cannot stand.
COMPILED_BY = ("jit", "kernel", "inlined")


class DeadAnchorError(ValueError):
    """The text that a fault replaces is not there, or is there more than once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong patch.

    room: name of the list that it stands in. file: path from the root of the checkout. promise:
    sentence that holds without the fault; of a mutant, the lines that it changes. tests: files or
    folders of tests, of which one must fail; the likeliest first.
    """

    room: str
    name: str
    file: str
    promise: str
    tests: tuple[str, ...]
    before: str
    after: str

    def patched(self, source: str) -> str:
        """Return the source with the fault; raise `DeadAnchorError` if it has no place there."""
        count = source.count(self.before)
        if count != 1:
            raise DeadAnchorError(f"{self.name}: found {count} times in {self.file}, not once")
        return source.replace(self.before, self.after)

    def marked(self, source: str, mark: Path) -> tuple[str, bool]:
        """Return the source with the fault, which makes the file `mark` when it runs.

        The second value is False where no mark can stand: in a function that is compiled.
        """
        wrong = self.patched(source)
        alike = takewhile(
            lambda pair: pair[0] == pair[1], zip(self.before, self.after, strict=False)
        )
        start = source.index(self.before) + len(list(alike))
        line = source.count("\n", 0, start) + 1
        place = _place_of_mark(ast.parse(source), line, source.splitlines())
        if place is None:
            return wrong, False
        row, column = place
        if row > line:  # below the patch
            row += wrong.count("\n") - source.count("\n")
        lines = wrong.splitlines(keepends=True)
        call = f'__import__("pathlib").Path({str(mark)!r}).touch()\n'
        lines.insert(row - 1, " " * column + call)
        return "".join(lines), True


def all_faults() -> list[Fault]:
    """Return the faults of all lists, in the order of their names."""
    return [fault for path in sorted(LISTS.glob("*.toml")) for fault in _read(path)]


def _read(path: Path) -> Iterator[Fault]:
    for entry in tomllib.loads(path.read_text())["fault"]:
        for test in entry.pop("each", ()):
            name = f"{entry['name']}@{test.removeprefix('tests/')}"
            yield Fault(room=path.stem, **{**entry, "name": name, "tests": (test,)})
        if "tests" in entry:
            yield Fault(room=path.stem, **{**entry, "tests": tuple(entry["tests"])})


def _place_of_mark(tree: ast.Module, line: int, lines: list[str]) -> tuple[int, int] | None:
    """Return line and column of the statement that runs when `line` does; None if compiled."""
    place, parts = None, tree.body
    while held := [part for part in parts if _first_line(part) <= line <= (part.end_lineno or 0)]:
        (statement,) = held
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(
                word in ast.unparse(each)
                for each in statement.decorator_list
                for word in COMPILED_BY
            ):
                return None
            begin = statement.body[int(ast.get_docstring(statement) is not None)]
            if line < begin.lineno:  # a default value
                return _first_line(begin), begin.col_offset
        if not lines[statement.lineno - 1].lstrip().startswith("elif"):
            place = _first_line(statement), statement.col_offset
        parts = list(_parts(statement))
    return place


def _parts(statement: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])
