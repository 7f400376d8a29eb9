"""The terminal: on stderr what is said, on stdout nothing but data."""

import sys
from typing import TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pagedrun.cli.terminal.lossy_stream import LossyStream
from pagedrun.cli.terminal.safe_text import MAX_SHOWN, safe
from pagedrun.paged.values.errors import as_flag, spelled

MAX_TOLD = 4 * MAX_SHOWN  # characters of an error with all that was added to it


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
    """Print one line of prose that may hold somebody else's text; it is never wrapped.

    Options that it names are shown as flags.
    """
    console.print(Text(safe(spelled(message, as_flag)), style=style), soft_wrap=True)


def tell(console: Console, message: str, style: str = "") -> None:
    """Print an error or a warning as `note` does, on a terminal in lines that break at words.

    A word wider than the terminal, such as a path, stays whole.
    """
    text = safe(spelled(message, as_flag), MAX_TOLD)
    for line in _lines(text, console.width) if console.is_terminal else [text]:
        console.print(Text(line, style=style), soft_wrap=True)


def _lines(text: str, width: int) -> list[str]:
    """Return `text` in lines of whole words, each as many as `width` columns hold."""
    first, *rest = text.split(" ")
    lines = [first]
    for word in rest:
        longer = f"{lines[-1]} {word}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
