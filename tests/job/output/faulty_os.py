"""FaultyOs: the `os` module with one call of the file system that fails, or all from one on."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# All that a job cannot do without.
MODULES = ("job.output.output_file", "job.output.vector_files", "files.atomic", "files.regular")
# What each call can fail with. A short write is no failure: the rest must follow.
FAULTS: dict[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS),
    "write": (0, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR),
    "pwrite": (0, errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "ftruncate": (errno.EIO,),
    "replace": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "close": (errno.EIO, errno.ENOSPC),
}


class FaultyOs:
    """Counts the calls named in `FAULTS`; the `place`-th one, from 1, fails.

    place: 0 for none. code: what with, 0 for a short write. and_after: every later one fails too.
    """

    def __init__(self, place: int, pick: int, *, and_after: bool) -> None:
        self.num_calls = 0
        self.fired: list[str] = []
        self._place = place
        self._pick = pick
        self._and_after = and_after

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._faulty(name, real) if name in FAULTS else real

    def fdopen(self, descriptor: int, mode: str) -> Any:
        """Return a file whose writes are counted too."""
        return FaultyFile(self, descriptor) if "w" in mode else os.fdopen(descriptor, mode)

    def _faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.num_calls += 1
            late = self._and_after and self.num_calls > self._place > 0
            if self.num_calls != self._place and not late:
                return None if name == "fsync" else real(*args, **more)
            codes = FAULTS[name]
            code = codes[self._pick % len(codes)]
            self.fired.append(f"{name} {errno.errorcode.get(code, 'short')}")
            if code == 0:
                return real(args[0], args[1][: max(len(args[1]) // 2, 1)], *args[2:])
            if name == "close":
                real(*args)  # it says that it failed, but the descriptor is gone
            raise OSError(code, os.strerror(code))

        return call


class FaultyFile:
    """A file opened for writing, without a buffer."""

    def __init__(self, faulty: FaultyOs, descriptor: int) -> None:
        self._faulty = faulty
        self._descriptor = descriptor

    def __enter__(self) -> "FaultyFile":
        return self

    def __exit__(self, *args: object) -> None:
        self._faulty.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        return

    def write(self, data: bytes) -> int:
        done = 0
        while done < len(data):
            done += self._faulty.write(self._descriptor, data[done:])
        return done


@contextmanager
def failing(place: int, pick: int, *, and_after: bool) -> Iterator[FaultyOs]:
    """Let the job's file system fail inside the block."""
    faulty = FaultyOs(place, pick, and_after=and_after)
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(f"pagedrun.paged.{module}.os", faulty)
        yield faulty
