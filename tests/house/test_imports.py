"""No file of the package imports another that, in the end, imports it."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cli", "paged", "kernels", "recipes")


def modules(root: Path) -> dict[str, Path]:
    """Return the files of the package by the names they are imported under."""
    found = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            parts = ("pagedrun", *path.relative_to(root).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports: in functions and for type checkers too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in known else node.module)
    return names & known.keys()


def circle(root: Path) -> list[str]:
    """Return the files of a circle of imports, in order; none if there is no circle."""
    known = modules(root)
    graph = TopologicalSorter({name: imported(path, known) for name, path in known.items()})
    try:
        graph.prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_file_imports_itself_through_others() -> None:
    assert len(modules(ROOT)) > 300
    assert circle(ROOT) == []


@pytest.mark.parametrize(
    "late",
    [
        "from pagedrun.cli.one import A",
        "def use() -> None:\n    from pagedrun.cli.one import A",
        "def use() -> None:\n    import pagedrun.cli.one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pagedrun.cli import one",
    ],
)
def test_a_circle_is_found_wherever_the_import_is(tmp_path: Path, late: str) -> None:
    folder = tmp_path / "cli"
    folder.mkdir()
    (folder / "one.py").write_text("from pagedrun.cli.two import B")
    (folder / "two.py").write_text(late)
    assert sorted(set(circle(tmp_path))) == ["pagedrun.cli.one", "pagedrun.cli.two"]
    (folder / "two.py").write_text("import json")
    assert circle(tmp_path) == []
