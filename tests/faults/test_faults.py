"""The lists of planted faults: each has its place in the source, once, and is Python."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.fault import ROOT, DeadAnchorError, Fault, all_faults
from tests.faults.invariants import Excepted, default_tests, held_in

FAULTS = all_faults()
HELD = list(default_tests())
MARKED = {each.test for each in HELD if each.what is not None}


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


def test_every_invariant_has_a_control_that_it_alone_must_notice() -> None:
    """The list is complete in both directions: each is of one marked test."""
    controls = [fault for fault in FAULTS if fault.room == "controls"]
    assert all(len(fault.tests) == 1 for fault in controls)
    controlled = {fault.tests[0].partition("[")[0] for fault in controls}
    assert not MARKED - controlled, "marked as an invariant, without a control"
    assert not controlled - MARKED, "controlled, and no test of a default run marked as invariant"


def test_what_is_called_an_invariant_is_marked() -> None:
    """Or is listed: without a control yet, or with the reason why it needs none."""
    excepted = Excepted.read()
    assert all(why.endswith(".") for why in excepted.by_reason.values())
    called = {each.test for each in HELD if each.says_so}
    listed = excepted.untried | excepted.by_reason.keys()
    assert not called - MARKED - listed, "mark it, and write a control"
    assert not listed - called, "no such test, or not called so"
    assert not listed & MARKED, "it has a control"


def test_marks_and_names_are_read_from_sources() -> None:
    source = (
        "@pytest.mark.heavy('why')\n@pytest.mark.invariant('what')\ndef test_a(): ...\n"
        "@pytest.mark.long\n@pytest.mark.invariant('what')\ndef test_b(): ...\n"
        "class TestSameBytes: ...\n"
        "def test_same_bytes(): ...\n"
        "def helper_of_same_bytes(): ...\n"
    )
    found = [(each.test, each.what, each.says_so) for each in held_in(source, "f.py")]
    assert found == [
        ("f.py::test_a", "what", False),
        ("f.py::TestSameBytes", None, False),
        ("f.py::test_same_bytes", None, True),
    ]
    assert not list(held_in("pytestmark = pytest.mark.long\n" + source, "f.py"))
    assert not list(held_in("pytestmark = [pytest.mark.gpu]\n" + source, "f.py"))


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
