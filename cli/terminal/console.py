"""The terminal: messages on stderr, data on stdout.

Text from users, files and models may contain escape sequences that clear the screen, set the
clipboard or change the direction of text, and square brackets that Rich would read as markup. Data
files keep such text unchanged; terminals receive it through `safe` only.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pagedrun.paged.values.errors import as_flag, spelled

MAX_SHOWN = 2000

MAX_ERROR_CHARS = 4 * MAX_SHOWN  # of an error with its notes


def stderr_console(stream: TextIO | None = None, width: int | None = None) -> Console:
    """Return a console on stderr without markup, emoji codes and highlighting.

    Width and color follow COLUMNS, NO_COLOR, TERM and the terminal. Write errors are ignored.
    """
    file = cast(TextIO, LossyStream(stream or sys.stderr))
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def stdout_console() -> Console:
    """Return a console on stdout without markup, emoji codes and highlighting."""
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False)


def print_json(
    value: object, *, default: Callable[[Any], Any] | None = None, indent: int | None = None
) -> None:
    """Write JSON and a newline to stdout, in ASCII: text in it may contain control characters."""
    json.dump(value, sys.stdout, default=default, indent=indent, allow_nan=False)
    sys.stdout.write("\n")


def note(console: Console, message: str, style: str = "") -> None:
    """Print a message on one line, escaped by `safe`, with marked options as flags."""
    console.print(Text(safe(spelled(message, as_flag)), style=style), soft_wrap=True)


def tell(console: Console, message: str, style: str = "") -> None:
    """Print an error or a warning as `note` does, on a terminal wrapped at words.

    A word wider than the terminal, such as a path, is not broken.
    """
    text = safe(spelled(message, as_flag), MAX_ERROR_CHARS)
    for line in _lines(text, console.width) if console.is_terminal else [text]:
        console.print(Text(line, style=style), soft_wrap=True)


def _lines(text: str, width: int) -> list[str]:
    """Return `text` wrapped at words to `width` columns."""
    first, *rest = text.split(" ")
    lines = [first]
    for word in rest:
        longer = f"{lines[-1]} {word}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


# Cc: control characters. Cf: format characters, such as those that reverse the direction of text.
# Cs: halves of surrogate pairs. Zl, Zp: line and paragraph separators.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str, limit: int = MAX_SHOWN) -> str:
    """Return `text` with invisible characters escaped, cut to `limit` characters."""
    return _escaped(text if len(text) <= limit else text[: limit - 1] + "…")


def safe_lines(text: str) -> str:
    """Return all of `text` with invisible characters escaped, except newlines and tabs."""
    return _escaped(text, kept="\n\t")


def _escaped(text: str, kept: str = "") -> str:
    return "".join(char if char in kept else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if unicodedata.category(char) not in _HIDDEN_CATEGORIES:
        return char
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class LossyStream:
    """Text stream that ignores write errors of the stream below it.

    A full log or a closed terminal must not end a job. After the first error the descriptor is
    redirected to the null device, so that flushing the buffer at exit does not fail.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, if possible."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: closed
            discard(self._stream)
        return len(text)

    def flush(self) -> None:
        """Flush, if possible."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard(stream: TextIO) -> None:
    """Redirect the descriptor of `stream` to the null device."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return
