"""Text of strangers on a terminal."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pagedrun.cli.terminal.console import note, safe, stderr_console

HOSTILE = [
    "\x1b[2J\x1b]52;c;aGk=\x07",
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31m\x85",
    "\x00\r\n\t\x7f",
    "\u202etxt.exe\u2066\u200f\u2028",
    "[/red][bold][link=http://x]:smile:",
    "\ud800",
]


@given(st.text())
def test_nothing_invisible_comes_through(text: str) -> None:
    shown = safe(text)
    assert all(unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    shown.encode("utf-8")


def test_plain_text_stays_as_it_is() -> None:
    text = "Grüße, 世界 [x] {y} :smile: \\n"
    assert safe(text) == text
    assert safe("a\x1bb\u202ec\U000e0001") == "a\\x1bb\\u202ec\\U000e0001"


def test_long_text_is_cut() -> None:
    assert safe("x" * 10_000, limit=10) == "x" * 9 + "…"


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("terminal", [False, True])
def test_a_note_shows_it_literally(text: str, terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, markup=False, emoji=False, width=20)
    note(console, text)
    assert stream.getvalue() == safe(text) + "\n"


def test_the_console_takes_no_markup() -> None:
    stream = io.StringIO()
    stderr_console(stream).print("[bold]:smile:[/nonsense] 123")
    assert stream.getvalue() == "[bold]:smile:[/nonsense] 123\n"
