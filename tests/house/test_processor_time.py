"""Which tests the default run takes, by their measured times."""

import pytest

from tests.support.processor_time import left_to_long

SECONDS = {"t[a]": 1.1, "t[b]": 3.0, "t[c]": 4.9, "u[a]": 5.1, "u[b]": 9.0}


@pytest.mark.parametrize(
    ("cases", "left"),
    [
        (["t[b]", "t[c]"], ["t[c]"]),  # one of a kind always runs
        (["t[a]"], []),
        (["t[new]", "t[a]"], ["t[a]"]),  # what nobody measured is short
        (["u[a]"], ["u[a]"]),
        (["u[a]", "u[b]"], ["u[a]", "u[b]"]),
        (["u[c]", "u[a]"], ["u[a]"]),
    ],
)
def test_cases_that_take_long_are_left(cases: list[str], left: list[str]) -> None:
    assert [*left_to_long(cases, SECONDS)] == left


def test_the_shortest_case_of_a_heavy_test_runs() -> None:
    assert [*left_to_long(["u[a]", "u[b]"], SECONDS, is_heavy=True)] == ["u[b]"]
