"""Sizes in bytes."""

import pytest
import typer

from pagedrun.cli.terminal.units import parse_size, parse_size_or_auto, show_size


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", 0),
        ("4294967296", 2**32),
        ("4GiB", 4 * 2**30),
        ("4gib", 4 * 2**30),
        ("4G", 4 * 2**30),
        ("4GB", 4 * 10**9),
        ("1.5 MiB", 3 * 2**19),
        ("512K", 2**19),
        ("10B", 10),
        ("9007199254740993", 9007199254740993),
        ("2TiB", 2**41),
    ],
)
def test_sizes_as_people_write_them(text: str, wanted: int) -> None:
    assert parse_size(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "4 G i B", "1e9", "4PiBB", "٤", "1" * 40, "GiB", "4,0G"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as"):
        parse_size(text)


def test_sizes_as_people_read_them() -> None:
    assert [show_size(size) for size in (0, 1023, 1024, 3 * 2**29, 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
        "1.0 TiB",
    ]


def test_auto_is_a_size_where_it_is_one() -> None:
    assert parse_size_or_auto(" auto ") == "auto"
    assert parse_size_or_auto("2KiB") == 2048
    with pytest.raises(typer.BadParameter, match="512MiB or 4GiB, or auto"):
        parse_size_or_auto("automatic")
