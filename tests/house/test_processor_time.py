"""Which tests the default run takes, by their measured times."""

from typing import Any

import pytest

from tests.support.processor_time import has_reason, left_to_long

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


class Marked:
    """Has one mark."""

    def __init__(self, mark: pytest.MarkDecorator) -> None:
        self._mark = mark.mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._mark if name == self._mark.name else None


@pytest.mark.parametrize(
    ("mark", "has"),
    [
        (pytest.mark.heavy("why"), True),
        (pytest.mark.invariant("what"), True),
        (pytest.mark.heavy, False),
        (pytest.mark.usefixtures("capsys"), False),
    ],
    ids=str,
)
def test_only_a_reason_lets_a_test_be_heavy(mark: pytest.MarkDecorator, has: bool) -> None:
    item: Any = Marked(mark)
    assert has_reason(item) == has
