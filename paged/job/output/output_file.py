"""Output file of a job: claimed, locked, and appended to in whole lines."""

import errno
import fcntl
import os
import select
import stat
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from pagedrun.paged.files.atomic import PRIVATE_MODE, remove_leftovers, replace_file, sync_folder
from pagedrun.paged.job.config import STDOUT
from pagedrun.paged.job.inputs.reader import STDIN
from pagedrun.paged.values.errors import PagedrunError, UsageError, option

STDOUT_DESCRIPTOR = 1
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
_WAYS_OUT = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room, or raise the quota",
    errno.EIO: "the disk may be failing: check the system's log",
    errno.EROFS: "its disk is mounted read-only",
    errno.EBADF: "name a file with -o instead",
}
_UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class OutputError(PagedrunError):
    """Failed write. The output has only complete rows.

    `errno` is the operating system's number for the reason.
    """

    def __init__(self, message: str, reason: OSError) -> None:
        super().__init__(message)
        self.errno = reason.errno


class OutputFile:
    """Claimed output; built by `claim`. Its contents are unchanged before `begin`.

    After an error of the file system the file ends at its last complete append.
    """

    def __init__(self, path: str, descriptor: int, *, created: bool) -> None:
        self.path = path
        self._descriptor = descriptor
        self._created = created
        self._is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode) and path != STDOUT
        self._num_bytes = 0

    @classmethod
    def claim(
        cls, path: str, *, overwrite: bool, input_name: str, resume: bool = False
    ) -> "OutputFile":
        """Open and lock `path`, `-` being standard output.

        Raises `UsageError` if it exists and neither `overwrite` nor `resume` is given, is the
        input, is a folder or a pipe, is written to by another run, or cannot be created.
        """
        if path == STDOUT:
            return cls(path, STDOUT_DESCRIPTOR, created=False)
        mode = refuse_target(path, input_name, overwrite=overwrite or resume)
        flags = _FLAGS if mode is not None else _FLAGS | os.O_CREAT | os.O_EXCL
        if _is_shared_folder(path) and not os.path.islink(path):
            flags |= os.O_NOFOLLOW  # a link created since the check is refused too
        try:
            descriptor = os.open(path, flags, PRIVATE_MODE)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise UsageError(_cannot_open(path, error)) from error
        try:
            _lock(path, descriptor)
            _refuse_removed(path, descriptor)
        except UsageError:
            os.close(descriptor)
            raise
        return cls(path, descriptor, created=mode is None)

    def __enter__(self) -> "OutputFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OutputError:
            if error is None:
                raise  # an earlier error has precedence

    @property
    def num_bytes(self) -> int:
        """Offset of the next append."""
        return self._num_bytes

    @property
    def is_new(self) -> bool:
        """True if this run created the file and has not begun."""
        return self._created

    @property
    def is_regular(self) -> bool:
        """True if this is a file on disk, not a device or standard output."""
        return self._is_regular

    def begin(self, keep: int = 0) -> None:
        """Truncate the file to its first `keep` bytes and take possession of it."""
        self._created = False
        self._num_bytes = keep
        if self._is_regular:
            try:
                os.ftruncate(self._descriptor, keep)
                os.fsync(self._descriptor)  # what was cut must not come back between new rows
                path = Path(os.path.realpath(self.path))
                remove_leftovers(path)
                sync_folder(path.parent)
            except OSError as error:
                raise self._error(error) from error

    def rewrite(self, chunks: Iterable[bytes]) -> None:
        """Replace the file by `chunks` atomically, and keep the lock.

        Raises `OutputError` if the file system fails; the file is then unchanged.
        """
        path = os.path.realpath(self.path)
        try:
            replace_file(Path(path), chunks)
            descriptor = os.open(path, _FLAGS)
        except OSError as error:
            raise self._error(error) from error
        old, self._descriptor = self._descriptor, descriptor
        with suppress(OSError):  # the old file is unlinked
            os.close(old)
        _lock(path, descriptor)

    def append(self, data: bytes) -> int:
        """Append `data` completely or not at all; return its offset.

        Raises `OutputError` if the file system fails, with the file truncated to its last append.
        """
        offset = self._num_bytes
        done = 0
        try:
            while done < len(data):  # one write, but a full disk or a pipe may take only a part
                done += self._write(data[done:] if done else data)
        except OSError as error:
            self._cut(offset)
            raise self._error(error) from error
        self._num_bytes += len(data)
        return offset

    def check(self) -> None:
        """Raise `OutputError` if the file's length differs from the appended bytes."""
        if not self._is_regular:
            return
        try:
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise self._error(error) from error
        if size != self._num_bytes:
            reason = OSError(errno.EIO, f"{size:,} bytes instead of {self._num_bytes:,}")
            raise OutputError(
                f"{self.path} was changed by another program while it was written "
                f"({reason.strerror})",
                reason,
            )

    def remove(self) -> None:
        """Remove the file, which stays locked and open. A failure costs only disk space."""
        path = Path(os.path.realpath(self.path))
        with suppress(OSError):
            path.unlink(missing_ok=True)
            sync_folder(path.parent)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes appended earlier."""
        return os.pread(self._descriptor, num_bytes, offset)

    def sync(self) -> None:
        """Wait until the appended bytes are on disk."""
        if self._is_regular:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._error(error) from error

    def close(self) -> None:
        """Release the file; one without `begin` is removed if this run created it."""
        if self.path == STDOUT or self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if self._created:
                Path(self.path).unlink(missing_ok=True)
            os.close(descriptor)  # releases the lock too
        except OSError as error:
            raise self._error(error) from error

    def _write(self, data: bytes) -> int:
        """Write a part of `data`, at least one byte; wait for a pipe that is full."""
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # the descriptor is non-blocking
                select.select([], [self._descriptor], [])

    def _cut(self, length: int) -> None:
        if self._is_regular:
            try:
                os.ftruncate(self._descriptor, length)
            except OSError:
                return  # the original error is raised

    def _error(self, error: OSError) -> OutputError:
        name = "standard output" if self.path == STDOUT else self.path
        return OutputError(f"{name} can no longer be written ({reason_of(error)})", error)


def reason_of(error: OSError) -> str:
    """Return the reason of a failed write, with advice."""
    way_out = _WAYS_OUT.get(error.errno or 0, "check the disk, or write to another one")
    return f"{error.strerror}; {way_out}"


def refuse_target(path: str, input_name: str, *, overwrite: bool) -> int | None:
    """Return the mode of the file at `path`, None if there is none.

    Raises `UsageError` if an output must not replace it or cannot be created there.
    """
    mode = _mode(path)
    if mode is not None:
        _refuse_kind(path, mode, input_name, overwrite)
    if _is_shared_folder(path):
        _refuse_foreign_link(path)
    return mode


def _mode(path: str) -> int | None:
    """Return the mode of the target of `path`, None if there is nothing."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(_cannot_open(path, error)) from error


def _refuse_kind(path: str, mode: int, input_name: str, overwrite: bool) -> None:
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder; name a file in it with -o")
    if _is_input(path, input_name):
        raise UsageError(f"{path} is the input itself; name another file with -o")
    if stat.S_ISCHR(mode):
        return  # a device has no contents to lose
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is a pipe or socket; use -o - and a shell pipe instead")
    if not overwrite:
        raise UsageError(
            f"{path} exists; pass {option('resume')} to continue it, {option('overwrite')} "
            "to replace it, or name another file with -o"
        )


def _is_shared_folder(path: str) -> bool:
    """Return true if any user may create files beside `path`, as in /tmp."""
    try:
        return bool(os.stat(os.path.dirname(path) or ".").st_mode & stat.S_IWOTH)
    except (OSError, ValueError):  # opening it reports the error
        return False


def _refuse_foreign_link(path: str) -> None:
    """Refuse a link of another user, who chose the file to overwrite."""
    if os.path.islink(path) and os.lstat(path).st_uid != os.geteuid():
        raise UsageError(
            f"{path} is a link that another user made in a folder open to all; name a file of "
            "your own with -o"
        )


def _is_input(path: str, input_name: str) -> bool:
    try:
        stdin_or_file = os.fstat(0) if input_name == STDIN else os.stat(input_name)
        return os.path.samestat(os.stat(path), stdin_or_file)
    except (OSError, ValueError):  # the reader reports errors of the input
        return False


def _lock(path: str, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return  # any number of runs may write to /dev/null
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNLOCKABLE:  # some network file systems: continue without a lock
            return
        raise UsageError(
            f"another run is writing to {path}; wait for it, or name another file with -o"
        ) from error


def _refuse_removed(path: str, descriptor: int) -> None:
    """Refuse a file removed by another run between opening and locking it here."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and not status.st_nlink and not os.path.exists(path):
        raise UsageError(f"another run has just finished writing {path}; check its output")


def _cannot_open(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: the folder does not exist; create it, or name another file with -o"
    if isinstance(error, FileExistsError):
        return f"{path} is a broken link, or was just created; name another file with -o"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"{path} cannot be written ({reason}); name another file with -o"


# Endings of formats that are not written.
OTHER_KINDS = frozenset(
    {
        *(".arrow", ".avro", ".feather", ".orc", ".tsv", ".xls", ".xlsx", ".db", ".sqlite"),
        *(".bz2", ".gz", ".xz", ".zip", ".zst", ".html", ".json", ".md", ".yaml"),
    }
)


class OutputFormat(StrEnum):
    """Kind of file by its ending."""

    JSONL = ".jsonl"
    JSONL_GZ = ".jsonl.gz"
    PARQUET = ".parquet"
    CSV = ".csv"
    NPY = ".npy"  # of vectors only

    @classmethod
    def of(cls, output: str) -> "OutputFormat":
        """Return the format of an output's name; JSONL without an ending.

        Raises `UsageError` for the ending of another kind of file.
        """
        name = Path(output).name
        for kind in cls:
            if name.lower().endswith(kind):
                return kind
        ending = Path(name).suffix
        if ending.lower() not in OTHER_KINDS:
            return cls.JSONL
        *others, last = (each for each in cls if each is not cls.NPY)
        raise UsageError(
            f"{output}: {ending} is not an output format; let the name end in "
            f"{', '.join(others)} or {last}",
            field="output",
        )

    def parted(self, path: Path) -> tuple[Path, str]:
        """Return a path without its ending, and the ending as given."""
        ending = path.name[len(path.name) - len(self) :] if path.suffix else ""
        return path.with_name(path.name.removesuffix(ending)), ending
