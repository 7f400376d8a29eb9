"""LossyStream: a place for messages that nobody may be able to read any more."""

import os
from typing import Any, TextIO


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
