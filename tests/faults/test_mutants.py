"""Mutants by machine: where they are made and where not, and that each has its place."""

import pytest

pytest.importorskip("mutmut", reason="pip install 'pagedrun[mutants]'")

import libcst as cst

from tests.faults.fault import ROOT
from tests.faults.mutants import FOLDERS, all_mutants, changed_lines, changes, quick_tests


def mutated(source: str) -> list[str]:
    module = cst.parse_module(source)
    return [module.deep_replace(node, changed).code for node, changed in changes(module)]


def test_conditions_and_numbers_are_changed() -> None:
    assert mutated("if a < 1:\n    b = c\n") == [
        "if a <= 1:\n    b = c\n",
        "if a < 2:\n    b = c\n",
    ]


def test_an_argument_goes_where_it_has_a_name() -> None:
    assert mutated("f(a, b=c)\n") == ["f(a, )\n"]


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""\n',
        "import a.b\n",
        "a: Literal['b']\n",
        "__all__ = ['a']\n",
        "@dataclass(frozen=True)\nclass A: ...\n",
        "assert a < 1\n",
        "raise A(f'{b + 1}', c=1)\n",
        "logger.info('a', 1)\n",
        "a = 'two words'\n",
        "assert_never(1)\n",
        "cast('A', b)\n",
        "zip(a, b, strict=True)\n",
        "if TYPE_CHECKING:\n    a = 1\n",
    ],
)
def test_left_out(source: str) -> None:
    assert mutated(source) == []


def test_lines_are_added_until_the_place_is_the_only_one() -> None:
    source = "a = 1\nb = 1\nc = 0\nb = 1\n"
    before, after = changed_lines(source, source[:-2] + "2\n")
    assert source.count(before) == 1
    assert source.replace(before, after) == source[:-2] + "2\n"


def test_a_mutant_is_a_fault_with_its_tests() -> None:
    mutant = next(all_mutants(["files"]))
    fault = mutant.fault()
    source = (ROOT / fault.file).read_text()
    assert fault.patched(source) == mutant.module.deep_replace(mutant.node, mutant.changed).code
    assert all((ROOT / test.split("::")[0]).exists() for test in fault.tests)


def test_each_file_has_tests() -> None:
    for folder in FOLDERS.values():
        for path in (ROOT / folder).rglob("*.py"):
            assert quick_tests(str(path.relative_to(ROOT)))
