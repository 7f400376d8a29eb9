"""ReadingStop: how one thread ends what another one reads."""

import io
import os
import select
from threading import Event
from typing import Any, BinaryIO, cast

TICK_MILLISECONDS = 100


class ReadingStoppedError(Exception):
    """The input is not read on, because the job is over."""


class ReadingStop:
    """Readers call `check` for every row; `set` lets the next call raise."""

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        """Let every reader stop."""
        self._event.set()

    def check(self) -> None:
        """Raise `ReadingStoppedError` if nothing is to be read on."""
        if self._event.is_set():
            raise ReadingStoppedError

    def stream(self, file: BinaryIO) -> BinaryIO:
        """Return a stream of the same bytes that stops too where it waits for more to come.

        `file` is a pipe or a device, of which nothing was read yet.
        """
        try:
            descriptor = file.fileno()
        except (OSError, ValueError, AttributeError):
            return file  # in memory: it never waits
        return cast(BinaryIO, io.BufferedReader(_PolledStream(descriptor, self)))


class _PolledStream(io.RawIOBase):
    """Reads from a file descriptor that stays another's to close."""

    def __init__(self, descriptor: int, stop: ReadingStop) -> None:
        self._descriptor = descriptor
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return true: reading is all it can do."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with what has come; 0 at the end."""
        self._stop.check()
        while not self._poll.poll(TICK_MILLISECONDS):
            self._stop.check()
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)
