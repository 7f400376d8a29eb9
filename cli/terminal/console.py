"""The terminal: on stderr what is said, on stdout nothing but data."""

import sys
from typing import TextIO, cast

from rich.console import Console
from rich.text import Text

from pagedrun.cli.terminal.lossy_stream import LossyStream
from pagedrun.cli.terminal.safe_text import safe


def stderr_console(stream: TextIO | None = None, width: int | None = None) -> Console:
    """Return a console that takes text literally: no markup, no emoji codes, no highlighting.

    Width and colour follow COLUMNS, NO_COLOR, TERM and whether stderr is a terminal. What cannot be
    written is dropped.
    """
    file = cast(TextIO, LossyStream(stream or sys.stderr))
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def stdout_console() -> Console:
    """Return a console for data that is text, which is taken literally."""
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False)


def note(console: Console, message: str, style: str = "") -> None:
    """Print one line of prose that may hold somebody else's text; it is never wrapped."""
    console.print(Text(safe(message), style=style), soft_wrap=True)
