"""Every hostile input and every requirement of SECURITY.md has a test, here or where it is named.

A test `test_07_…` of this folder is for input 7, `test_s14_…` for requirement S14. What a test
outside this folder holds is not doubled: `ELSEWHERE` says which.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    # Stop strings across tokens and inside characters.
    "18": ("scheduling/test_stopping.py", "test_a_stop_string_across_token_borders"),
    # Killed, stopped and signalled anywhere, and gone on with.
    "29": ("whole/test_kill.py", "test_killed_a_few_times"),
    # Writing, syncing and renaming that fail.
    "30": ("job/output/test_io_faults.py", "test_every_call_fails"),
    # What failed is not shared.
    "s08": ("whole/test_nan.py", "test_a_poisoned_row_fails_alone"),
    # Ray: loopback, a token, private files.
    "s17": (
        "replicas/test_replicas_on_ray.py",
        "test_a_local_cluster_listens_on_loopback_only_and_keeps_its_files_private",
    ),
    # Packed files: their own limits.
    "s11": ("job/inputs/test_packed_input.py", "test_a_bomb_is_refused_early_and_in_little_memory"),
}
NUMBERS = [f"{number:02}" for number in range(1, 36)]
REQUIREMENTS = [f"s{number:02}" for number in range(1, 21)]


def names_of_tests(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def numbers_in(name: str) -> list[str]:
    """Return what is between `test_` and the words."""
    found = re.match(r"test_((?:s?\d\d_)+)", name)
    return found[1].strip("_").split("_") if found else []


HERE = {
    number
    for path in Path(__file__).parent.glob("test_*.py")
    for name in names_of_tests(path)
    for number in numbers_in(name)
}


@pytest.mark.parametrize("number", [*NUMBERS, *REQUIREMENTS])
def test_each_has_a_test(number: str) -> None:
    if number in HERE:
        return
    path, name = ELSEWHERE[number]
    assert any(each.startswith(name) for each in names_of_tests(TESTS / path))
