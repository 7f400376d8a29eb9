"""The text of a question: files, standard input and what was typed, in this order."""

import io
import select
import sys
from collections.abc import Callable, Iterable

from pagedrun.cli.options.reading import file_text
from pagedrun.paged.values.errors import UsageError, option

PATIENCE_SECONDS = 2.0


def question_text(typed: str, files: Iterable[str], wait: Callable[[], None]) -> str:
    """Return the parts that there are, a blank line between them.

    Standard input is one unless it is a terminal; `wait` is called if nothing comes from it for
    long. Raises `UsageError` for a part that is no text, and if there is none at all.
    """
    parts = [file_text(path, f"{option('file')} {path}") for path in files]
    parts += [_standard_input(wait), typed]
    whole = "\n\n".join(part for part in parts if part)
    if not whole.strip():
        raise UsageError(
            f'the question is missing; type it after ask, as in pagedrun ask "Why?", name a '
            f"{option('file')}, or pipe it in"
        )
    return whole


def _standard_input(wait: Callable[[], None]) -> str:
    stream = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        return ""
    try:
        if not select.select([stream], [], [], PATIENCE_SECONDS)[0]:
            wait()
    except (io.UnsupportedOperation, ValueError):
        pass  # it is no file: whatever it has is there
    try:
        return stream.buffer.read().decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError("standard input is not UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"standard input cannot be read ({error.strerror})") from error
