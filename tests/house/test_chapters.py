"""Form of the source: files as chapters, records said once, first sentences of docstrings."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cli", "paged", "kernels", "recipes")
# Folders of which a reader opens one file only: a family, a command, a family of operations.
OPENED_ONE_BY_ONE = {"paged/models/families", "cli"}
MOST_FILES = 16
MOST_LINES = 600
# A short module with one importer usually belongs into it. Entry points are imported once.
SHORT = 120
MOST_SHORT_WITH_ONE_IMPORTER = 60
ENTRY_POINTS = {"main", "registry", "backend"}
# Two records are alike if they share this many fields, and this share of the smaller one.
ALIKE_FIELDS = 5
ALIKE_SHARE = 0.7
MOST_ALIKE = 27  # pairs; the next fold lowers it

# As a definition: "What a plan holds.", "Those which ...", "Whether a row ...".
HEADLESS = re.compile(
    r"^(?:the |those |of |in |for |from |by |with |to )?"
    r"(?:what|which|who|whose|whom|how|where|whether|when|nobody|none of)\b",
    re.I,
)
PRIVATE = re.compile(r"\bnobody\b|\bwhat (?:is|are|was|were|there)\b", re.I)


@cache
def trees() -> dict[str, ast.Module]:
    """Return the parsed modules of the package by their paths."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "training" not in path.parts:
                found[path.relative_to(ROOT).as_posix()] = ast.parse(path.read_text())
    return found


def module_name(path: str) -> str:
    return "pagedrun." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def is_headless(docstring: str) -> bool:
    first = docstring.split("\n")[0]
    return bool(HEADLESS.match(first) or PRIVATE.search(first))


def fields_of_records(tree: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield names and fields of dataclasses, named tuples and typed dictionaries."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        marks = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
        if re.search(r"\bdataclass\b|\bNamedTuple\b|\bTypedDict\b", marks):
            names = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            yield node.name, frozenset(each.id for each in names if isinstance(each, ast.Name))


def alike_records() -> list[tuple[str, str]]:
    records = [record for tree in trees().values() for record in fields_of_records(tree)]
    return [
        (name, other)
        for (name, fields), (other, theirs) in combinations(records, 2)
        if len(fields & theirs) >= ALIKE_FIELDS
        and len(fields & theirs) >= ALIKE_SHARE * min(len(fields), len(theirs))
    ]


@pytest.mark.heavy("parses all sources")
def test_files_are_chapters_and_folders_have_few() -> None:
    files = defaultdict(list)
    for path in trees():
        assert len((ROOT / path).read_text().splitlines()) <= MOST_LINES, path
        if not path.endswith("__init__.py"):
            files[str(Path(path).parent)].append(path)
    crowded = {folder for folder, paths in files.items() if len(paths) > MOST_FILES}
    assert crowded - OPENED_ONE_BY_ONE == set()


def test_short_modules_have_several_importers() -> None:
    known = {module_name(path): path for path in trees()}
    importers = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    importers[known.get(whole) or known.get(node.module)].add(path)
    short = [
        path
        for path in trees()
        if not path.endswith("__init__.py")
        and "families" not in path
        and Path(path).stem not in ENTRY_POINTS
        and len(importers[path] - {path}) == 1
        and len((ROOT / path).read_text().splitlines()) < SHORT
    ]
    assert len(short) <= MOST_SHORT_WITH_ONE_IMPORTER, short


def test_few_records_repeat_the_fields_of_another() -> None:
    pairs = alike_records()
    assert len(pairs) <= MOST_ALIKE, pairs


def test_first_sentences_name_their_subject() -> None:
    scripts = {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for path in (ROOT / "benchmarks").rglob("*.py")
    }
    found = [
        f"{path}: {text.splitlines()[0]}"
        for path, tree in (trees() | scripts).items()
        for text in docstrings(tree)
        if is_headless(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("docstring", "headless"),
    [
        ("What a plan holds.", True),
        ("Whether a row has ended.", True),
        ("Rows that nobody asked for.", True),
        ("Return what is left of a row.", True),
        ("Sizes of KV pools.", False),
        ("Return the blocks of a sequence.", False),
    ],
)
def test_headless_sentences_are_found(docstring: str, headless: bool) -> None:
    assert is_headless(docstring) == headless


@cache
def imports_of_tests() -> list[tuple[Path, str]]:
    """Return each `from` import of the tests: the file, relative to `tests`, and the names."""
    tests = ROOT / "tests"
    return [
        (path.relative_to(tests), f"{node.module}.{each.name}")
        for path in tests.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for each in node.names
    ]


@pytest.mark.heavy("parses all tests")
def test_no_test_module_imports_another() -> None:
    found = [
        f"{path}: {name}"
        for path, name in imports_of_tests()
        if name.startswith("tests.") and ".test_" in name
    ]
    assert found == []


def test_what_tests_of_two_rooms_use_lies_in_support() -> None:
    own_rooms = ("tests.support", "tests.conftest", "tests.processors")
    found = [
        f"{path}: {name}"
        for path, name in imports_of_tests()
        if name.startswith("tests.")
        and not name.startswith((*own_rooms, f"tests.{path.parts[0]}."))
    ]
    assert found == []


def test_only_tests_of_benchmarks_use_them() -> None:
    rooms = (
        "bench",
        "benchmarks",
        "cli/bench",
        "cli/page/test_memory_page",
        "cli/page/test_try_panel",
    )
    found = [
        f"{path}: {name}"
        for path, name in imports_of_tests()
        if name.startswith("pagedrun.paged.bench.") and not str(path).startswith(rooms)
    ]
    assert found == []
