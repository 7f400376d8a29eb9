"""The lists of planted faults: each has its place in the source, once, and is Python."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.fault import ROOT, DeadAnchorError, Fault, all_faults

FAULTS = all_faults()


def a_fault(before: str, after: str) -> Fault:
    return Fault("room", "name", "file.py", "It holds.", (), before, after)


def test_names_are_told_apart() -> None:
    assert not [name for name, count in Counter(f.name for f in FAULTS).items() if count > 1]


def test_each_has_its_place() -> None:
    """A dead anchor is no fault: the source moved on, and its promise is no longer tried."""
    wrong = []
    for fault in FAULTS:
        try:
            ast.parse(fault.patched((ROOT / fault.file).read_text()))
        except (DeadAnchorError, SyntaxError, OSError) as error:
            wrong.append(f"{fault.name}: {error}")
    assert not wrong


def test_each_names_tests_and_a_promise() -> None:
    for fault in FAULTS:
        assert fault.promise.endswith("."), fault.name
        assert fault.tests, fault.name
        missing = [test for test in fault.tests if not (ROOT / test.split("::")[0]).exists()]
        assert not missing, fault.name


def test_an_anchor_twice_is_dead() -> None:
    with pytest.raises(DeadAnchorError, match="found 2 times"):
        a_fault("x = 1", "x = 2").patched("x = 1\nx = 1\n")


@pytest.mark.parametrize(
    ("source", "before", "after", "runs"),
    [
        ("def f(a):\n    return a + 1\n", "a + 1", "a + 2", "f(1)"),
        ("def f(a=1):\n    'Text.'\n    return a\n", "a=1", "a=2\n", "f()"),
        ("def f(a):\n    a += 1\n    return a\n", "    a += 1\n", "", "f(1)"),
        ("def f(a):\n    b = [\n        1,\n    ]\n    return b\n", "1,", "2,", "f(1)"),
        ("def f(a):\n    match a:\n        case 1:\n            return 2\n", "2", "3", "f(1)"),
        (
            "def f(a):\n    if a:\n        a = 1\n    elif not a:\n        a = 2\n    return a\n",
            *("elif not a", "elif a", "f(0)"),
        ),
        (
            "def f(a):\n    try:\n        a()\n    except TypeError:\n        a = 1\n",
            *("a = 1", "a = 2", "f(1)"),
        ),
    ],
)
def test_a_mark_is_made_when_the_fault_runs(
    tmp_path: Path, source: str, before: str, after: str, runs: str
) -> None:
    mark = tmp_path / "mark"
    wrong, has_mark = a_fault(before, after).marked(source, mark)
    assert has_mark
    scope: dict[str, object] = {}
    exec(wrong, scope)
    assert not mark.exists(), "the definition is not the run"
    exec(runs, scope)
    assert mark.exists()


def test_compiled_code_takes_no_mark(tmp_path: Path) -> None:
    source = "@numba.njit(fastmath=True)\ndef f(a):\n    return a + 1\n"
    assert not a_fault("+ 1", "+ 2").marked(source, tmp_path / "mark")[1]
