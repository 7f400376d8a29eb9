"""The walks in docs/architecture.md name files and definitions that exist."""

import ast
import re

import pytest

from tests.support.pages import DOCS, ROOT

MAX_FILES = 15
WALKS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##)", DOCS["docs/architecture.md"], re.M | re.S))


def rows(walk: str) -> list[tuple[str, list[str]]]:
    """Return file and names of each table row."""
    cells = [line.split("|") for line in WALKS[walk].splitlines() if ".py`" in line and "|" in line]
    return [(cell[2].strip(" `"), re.findall(r"`([^`]+)`", cell[3])) for cell in cells]


def definitions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> set[str]:
    """Return the names that a module defines, methods and fields as `Class.name`."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {prefix + node.name} | definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            found.add(prefix + node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {prefix + each.id for each in targets if isinstance(each, ast.Name)}
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_every_name_of_a_walk_exists(walk: str) -> None:
    assert len(rows(walk)) > 10
    for path, names in rows(walk):
        defined = definitions(ast.parse((ROOT / path).read_text()))
        assert names, path
        assert set(names) <= defined, f"{path} has no {set(names) - defined}"


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_opens_few_files(walk: str) -> None:
    assert len({path for path, _ in rows(walk)}) <= MAX_FILES


@pytest.mark.parametrize("walk", WALKS)
def test_every_result_exists(walk: str) -> None:
    """The values that the last column names are classes of the program."""
    sources = "\n".join(
        path.read_text() for top in ("paged", "kernels") for path in (ROOT / top).rglob("*.py")
    )
    table = [line.split("|") for line in WALKS[walk].splitlines() if ".py`" in line and "|" in line]
    for name in re.findall(r"`([A-Z]\w+)`", " ".join(cell[4] for cell in table)):
        assert re.search(rf"^(class {name}\b|{name}\b.* = )", sources, re.M), name
