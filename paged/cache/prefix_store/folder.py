"""StoreFolder: the folder of a prefix store, written atomically and trimmed by one process.

It also remembers the digests of weight files, so that each file is read once.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun.paged.cache.prefix_store.entry import find_entries
from pagedrun.paged.files.atomic import PRIVATE_MODE, make_folder, replace_file, replace_json
from pagedrun.paged.values.errors import UsageError, option

MARKER = "prefix-store.json"
_LOCK = ".lock"
_USES = ".uses"
_FOLDER_MODE = 0o700
_DATE_STEP_NS = 1000  # as fine as the dates of most file systems
_NOT_A_STORE = (
    f"name the folder of a {option('prefix_store')}, or a run's output, report or snapshot"
)
_STALE_SECONDS = 3600.0  # a file half written for so long has lost its writer
# What a store leaves of a disk: rows of the same run are to be written there too.
_KEPT_FREE = 2**30
_KEPT_FREE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class EntryUse:
    """A file's size in bytes, the time of its last use (nanoseconds since 1970), and its uses."""

    path: Path
    num_bytes: int
    last_use_ns: int
    num_uses: int


class StoreFolder:
    """A folder of entries. Any number of processes may read and write it at once.

    An entry is written beside and moved to its name, never changed, and only ever unlinked: who
    has opened it can read on. Built by `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(
        cls, path: Path, *, create: bool = True, flag: str = f"{option('prefix_store')} "
    ) -> "StoreFolder":
        """Open the store at `path`; with `create`, make the folder, or take an empty one.

        Raises `UsageError` if it is something else than a store, if it cannot be read or made, or,
        with `create`, if everybody may write to it; `flag` begins the sentence.
        """
        name = f"{flag}{path}"
        way_out = "name another folder, or one that does not exist yet" if create else _NOT_A_STORE
        try:
            if create and not path.exists():
                make_folder(path, _FOLDER_MODE, parents=False)  # another run may just have made it
            state = path.stat()
            if not stat.S_ISDIR(state.st_mode):
                raise UsageError(f"{name} is not a folder; {way_out}")
            if create and state.st_mode & stat.S_IWOTH:
                raise UsageError(
                    f"{name} is writable by all users, so its contents cannot be trusted; run "
                    "chmod o-w on it, or name another folder"
                )
            if not (path / MARKER).is_file():
                if not create or any(map(_is_other_thing, path.iterdir())):
                    raise UsageError(
                        f"{name} contains other files and is not a prefix store; {way_out}"
                    )
                replace_json(path / MARKER, {"format": 1})
        except OSError as error:
            raise UsageError(f"{name} cannot be used ({error.strerror}); {way_out}") from error
        return cls(path)

    def entries(self) -> Sequence[Path]:
        """Return the entries, sorted by name. Raises `OSError` if the folder cannot be read."""
        return find_entries(self.path)

    def write(self, name: str, data: bytes) -> None:
        """Write an entry, whole or not at all.

        Raises `OSError` if that fails, or if little would be left of the disk.
        """
        usage = shutil.disk_usage(self.path)
        kept_free = min(_KEPT_FREE, int(usage.total * _KEPT_FREE_SHARE))
        if usage.free - len(data) < kept_free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(self.path / name, [data])

    def note_use(self, names: Sequence[str]) -> None:
        """Count one use of each of the entries of one prefix, in the order of its tokens.

        A file of as many bytes as there were uses needs no lock.
        """
        self.date(names)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        for name in names:
            with suppress(OSError):  # a disk that is full, or not to be written
                descriptor = os.open(self.path / (name + _USES), flags, PRIVATE_MODE)
                try:
                    os.write(descriptor, b".")
                finally:
                    os.close(descriptor)

    def date(self, names: Sequence[str]) -> None:
        """Say that the entries of one prefix, in the order of its tokens, are wanted now.

        Its end is dated a little earlier: it goes before its beginning, without which it would be
        of no use.
        """
        now = time.time_ns()
        for age, name in enumerate(names):
            with suppress(OSError):  # gone, or not ours to date
                dated = now - age * _DATE_STEP_NS
                os.utime(self.path / name, ns=(dated, dated))

    def uses(self) -> list[EntryUse]:
        """Return size and use of every entry, the least recently used first."""
        found = []
        for path in self.entries():
            with suppress(FileNotFoundError):  # another process trims
                state = path.stat()
                uses = path.with_name(path.name + _USES)
                num_uses = uses.stat().st_size if uses.is_file() else 0
                found.append(EntryUse(path, state.st_size, state.st_mtime_ns, num_uses))
        return sorted(found, key=lambda each: each.last_use_ns)

    def num_bytes(self) -> int:
        """Return the bytes of all entries."""
        num_bytes = 0
        for path in self.entries():
            with suppress(FileNotFoundError):  # another process trims
                num_bytes += path.stat().st_size
        return num_bytes

    def trim(self, max_bytes: int) -> list[EntryUse]:
        """Remove the least recently used entries until at most `max_bytes` are left; return them.

        What writers that died have left is removed too. Nothing is done while another process
        trims. Raises `OSError` if an entry cannot be removed.
        """
        removed: list[EntryUse] = []
        with self._lock() as is_mine:
            if not is_mine:
                return removed
            self._remove_remains()
            uses = self.uses()
            num_bytes = sum(each.num_bytes for each in uses)
            for use in uses:
                if num_bytes <= max_bytes:
                    break
                self._unlink(use.path)
                num_bytes -= use.num_bytes
                removed.append(use)
        return removed

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove entries. Raises `OSError` if one cannot be removed."""
        for path in paths:
            self._unlink(path)

    def _unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        path.with_name(path.name + _USES).unlink(missing_ok=True)

    def _remove_remains(self) -> None:
        latest = time.time() - _STALE_SECONDS
        for path in self.path.glob(".*.tmp"):
            with suppress(OSError):
                if path.lstat().st_mtime < latest:
                    path.unlink()

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the store's lock, or say that another process does."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / _LOCK, flags, PRIVATE_MODE)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_mine = True
            except BlockingIOError:
                is_mine = False
            yield is_mine
        finally:
            os.close(descriptor)


def _is_other_thing(path: Path) -> bool:
    """Return whether a folder with `path` in it holds something that is not a store's."""
    return path.name != MARKER and not path.name.startswith(".")  # being made by another run


MEMORY = "weights.json"
MAX_REMEMBERED = 4096  # files
# A file changed as often as this may have the same times after a change as before it.
CLOCK_STEP_NS = 2_000_000_000

Stamp = tuple[str, int, int, int, int]


def stamps(files: Sequence[Path]) -> tuple[Stamp, ...]:
    """Return what tells a file from the one that takes its place: path, inode, size and times.

    The time of the last change of the inode is among them: it cannot be set back.
    """
    return tuple(_stamp(path) for path in files)


def weights_digest(folder: Path, files: Sequence[Path]) -> str:
    """Return the SHA-256 of the names and the contents of all `files`, as hex.

    folder: the store, which remembers digests: a file that looks the same is not read again. What
    cannot be remembered is read next time. Raises `OSError` for a weight file that cannot be read.
    """
    remembered = _remembered(folder / MEMORY)
    found: dict[str, str] = {}
    stamped = dict(zip(files, stamps(files), strict=True))
    for stamp in stamped.values():
        known = remembered.get(stamp[0])
        if known is not None and known[:4] == list(stamp[1:]):
            found[stamp[0]] = str(known[4])
    missing = [path for path in files if stamped[path][0] not in found]
    if missing:
        with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as threads:
            for path, digest in zip(missing, threads.map(_digest, missing), strict=True):
                found[stamped[path][0]] = digest
        _remember(folder / MEMORY, remembered, found, [stamped[path] for path in missing])
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{path.name}\0{found[stamped[path][0]]}\n".encode())
    return whole.hexdigest()


def _stamp(path: Path) -> Stamp:
    state = path.stat()
    times = (state.st_mtime_ns, state.st_ctime_ns)
    return (os.path.realpath(path), state.st_ino, state.st_size, *times)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(memory: Path) -> dict[str, list[Any]]:
    """Return path → [inode, size, two times, digest]; nothing where the file is not to be used."""
    try:
        value = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {path: known for path, known in value.items() if _is_known(known)}


def _is_known(known: object) -> bool:
    return isinstance(known, list) and len(known) == 5 and isinstance(known[4], str)


def _remember(
    memory: Path,
    remembered: Mapping[str, list[Any]],
    found: Mapping[str, str],
    new: Sequence[Stamp],
) -> None:
    latest = time.time_ns() - CLOCK_STEP_NS
    kept = {path: known for path, known in remembered.items() if os.path.exists(path)}
    for path, *state in new:
        if max(state[2:]) < latest:
            kept[path] = [*state, found[path]]
    with suppress(OSError):  # a store that cannot be written can still be read
        replace_json(memory, dict(list(kept.items())[-MAX_REMEMBERED:]))
