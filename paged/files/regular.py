"""Regular files of untrusted folders: what else has a file's name is refused, not waited for."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
# A named pipe that nobody writes to is opened at once, too.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, in bytes.

    Raises `OSError`: for a pipe, a device, a socket or a folder with `EINVAL` and its kind.
    """
    _refuse_kind(path.stat().st_mode)  # opening a device may have effects
    descriptor = os.open(path, _FLAGS)
    try:
        _refuse_kind(os.fstat(descriptor).st_mode)  # of what has taken its name since
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _refuse_kind(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise OSError(errno.EINVAL, f"it is {kind}, where a regular file is needed")
