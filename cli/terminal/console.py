"""The terminal: messages on stderr, data on stdout.

Text from users, files and models may hold escape sequences that clear the screen, set the
clipboard or change the direction of text, and square brackets that Rich would read as markup.
Data files keep such text exactly; a terminal gets it through `safe` only. `LossyStream` accepts
messages whose reader may be gone.
"""

import os
import sys
import unicodedata
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pagedrun.paged.values.errors import as_flag, spelled

MAX_SHOWN = 2000

MAX_ERROR_CHARS = 4 * MAX_SHOWN  # characters of an error with all that was added to it


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
    text = safe(spelled(message, as_flag), MAX_ERROR_CHARS)
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


# Cc: control characters. Cf: format characters, among them the ones that reverse the direction of
# text. Cs: halves of surrogate pairs. Zl, Zp: line ends that are no newline.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str, limit: int = MAX_SHOWN) -> str:
    """Return `text` with everything invisible written as an escape, cut to `limit` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(
        _escape(char) if unicodedata.category(char) in _HIDDEN_CATEGORIES else char for char in cut
    )


def safe_lines(text: str) -> str:
    """Return `text` whole, with everything invisible but line ends and tabs as an escape."""
    return "".join(
        _escape(char)
        if unicodedata.category(char) in _HIDDEN_CATEGORIES and char not in "\n\t"
        else char
        for char in text
    )


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class LossyStream:
    """A text stream that drops what it cannot write; otherwise it is the stream below.

    A job must not die of a full log or of a terminal that was closed. After the first failure the
    descriptor leads nowhere, so that what is still in the buffer fails nobody at exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text` if that is possible."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: it is closed
            discard(self._stream)
        return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard(stream: TextIO) -> None:
    """Let what is, and will be, written to `stream` go nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return
