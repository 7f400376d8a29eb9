"""Spans of time."""

import pytest
import typer

from pagedrun.cli.terminal.units import parse_span, show_span


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", 90),
        ("90", 90),
        ("0.5s", 0.5),
        ("45m", 2700),
        ("45 min", 2700),
        ("2h", 7200),
        ("1H30M", 5400),
        ("1h 30m 5s", 5405),
        ("1.5h", 5400),
        ("2d", 172_800),
    ],
)
def test_spans_as_people_write_them(text: str, wanted: float) -> None:
    assert parse_span(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1", "s", "1e9", "nan", "inf", "2 weeks", "30m1h", "٤s", "1" * 40]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as"):
        parse_span(text)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (3.2, 8.1, "3 s to 9 s"),
        (121, 301, "2 min to 6 min"),
        (4, 4, "4 s"),
        (59, 60, "55 s to 1 min"),
    ],
)
def test_a_shown_interval_contains_the_computed_one(low: float, high: float, shown: str) -> None:
    assert show_span(low, high) == shown
