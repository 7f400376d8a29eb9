"""RecordedDisk: a real folder whose changes are recorded, and the states a power cut may leave.

A write is on the disk once its file was synced, a name (new, moved or removed) once its folder
was. What becomes of the rest a `DiskModel` says: a real disk keeps any of it, in any order. The
process dies with the machine, so that the calls of one run to its end hold all cuts of it.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest


class DiskModel(Enum):
    """What is left of that which was not synced: nothing; any of it, in part or as zeros; or all,
    but of the last write only a part, or zeros."""

    LOST = auto()
    SUBSET = auto()
    TORN = auto()


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call, or a mark. place: path below the root. file: number of the file.

    data: of a write at `offset`; a truncation has none. target: new name of a renamed file.
    """

    kind: str
    place: str = ""
    file: int = -1
    offset: int = 0
    data: bytes | None = None
    target: str = ""


@dataclass(slots=True)
class File:
    """The bytes of a file on the disk, and its writes and truncations that may not be there."""

    synced: bytes = b""
    pending: list[Call] = field(default_factory=list)

    def sync(self) -> None:
        self.synced, self.pending = _applied(self.synced, self.pending), []


State = dict[str, bytes | None]  # contents by path; None for a folder
ROOT = ""
SECTOR_BYTES = 512


class RecordedDisk:
    """Folder below which calls of the `os` module are recorded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[Call] = []
        self._before: State = {}
        self._numbers: dict[str, int] = {}  # of files, by their path now
        self._sizes: list[int] = []  # of files, by number
        self._open: dict[int, tuple[int, str]] = {}  # number (-1: a folder) and path by descriptor

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls inside the block. All that is there at its beginning is on the disk.

        Raises `AssertionError` for a change that was made without the `os` module's functions.
        """
        self.calls, self._before = [], self.contents()
        files = {path: data for path, data in self._before.items() if data is not None}
        self._numbers = {path: number for number, path in enumerate(files)}
        self._sizes = [len(data) for data in files.values()]
        with pytest.MonkeyPatch.context() as patch:
            for name, call in self._recorded_calls().items():
                patch.setattr(os, name, call)
            yield
        there = {path: len(data) for path, data in self.contents().items() if data is not None}
        known = {path: self._sizes[number] for path, number in self._numbers.items()}
        assert there == known, "something was written past the recorded calls"

    def mark(self, kind: str, data: bytes) -> None:
        """Record a mark among the calls."""
        self.calls.append(Call(kind, data=data))

    def drawn_place(self, draw: random.Random) -> int:
        """Draw the number of calls before a cut: any, or those before a sync, when the most is at
        stake."""
        syncs = [
            number
            for number, call in enumerate(self.calls)
            if call.kind.startswith("sync") and not call.place.endswith(".tmp")
        ]
        is_any = not syncs or draw.random() < 0.5
        return draw.randint(0, len(self.calls)) if is_any else draw.choice(syncs)

    def contents(self) -> State:
        """Return what is in the folder now."""
        found: State = {}
        for folder, folders, files in os.walk(self.root):
            at = Path(folder).relative_to(self.root)
            found |= {str(at / name): None for name in folders}
            found |= {str(at / name): Path(folder, name).read_bytes() for name in files}
        return found

    def restore(self, state: State) -> None:
        """Replace what is in the folder."""
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name in sorted(state):
            data, path = state[name], self.root / name
            if data is None:
                path.mkdir()
            else:
                path.write_bytes(data)

    def after_cut(self, num_calls: int, model: DiskModel, draw: random.Random) -> State:
        """Return a state in which the disk may be after a cut behind so many calls."""
        files = [File(data) for data in self._before.values() if data is not None]
        numbers = iter(range(len(files)))
        names = {path: -1 if data is None else next(numbers) for path, data in self._before.items()}
        moves: list[Call] = []  # that may not be on the disk
        for call in self.calls[:num_calls]:
            match call.kind:
                case "create":
                    files.append(File())
                    moves.append(call)
                case "rename" | "unlink" | "mkdir" | "rmdir":
                    moves.append(call)
                case "write" | "truncate":
                    files[call.file].pending.append(call)
                case "sync":
                    files[call.file].sync()
                case "sync folder":
                    for each in moves:
                        if os.path.dirname(each.place) == call.place:
                            _move(names, each)
                    moves = [each for each in moves if os.path.dirname(each.place) != call.place]
        for each in moves:
            if model is DiskModel.TORN or (model is DiskModel.SUBSET and draw.random() < 0.5):
                _move(names, each)
        last = self.calls[num_calls - 1] if num_calls else None
        of_files = {number: draw.random() < 0.5 for number in range(len(files))}
        by_file = model is DiskModel.SUBSET and draw.random() < 0.5  # each is written or it is not
        state: State = {}
        for path, number in sorted(names.items()):
            folder = os.path.dirname(path)
            if folder == ROOT or folder in state:  # what is in a lost folder is lost
                if number < 0:
                    state[path] = None
                elif by_file:
                    kept = files[number].pending if of_files[number] else []
                    state[path] = _applied(files[number].synced, kept)
                else:
                    state[path] = _left(files[number], model, draw, last)
        return state

    def _place(self, path: Any) -> str | None:
        """Return a path below the root, None for one elsewhere."""
        whole, root = os.path.abspath(os.fsdecode(path)), f"{self.root}/"
        return f"{whole}/"[len(root) : -1] if f"{whole}/".startswith(root) else None

    def _write(self, descriptor: int, data: Any, offset: int | None = None) -> None:
        number, place = self._open[descriptor]
        offset = self._sizes[number] if offset is None else offset
        self.calls.append(Call("write", place, number, offset, bytes(data)))
        self._sizes[number] = max(self._sizes[number], offset + len(data))

    def _truncate(self, descriptor: int, length: int) -> None:
        number, place = self._open[descriptor]
        if length != self._sizes[number]:
            self.calls.append(Call("truncate", place, number, length))
            self._sizes[number] = length

    def _note_open(self, path: Any, flags: int, descriptor: int) -> None:
        place = self._place(path)
        if place is None:
            return
        if flags & os.O_DIRECTORY:
            self._open[descriptor] = -1, place
            return
        if place not in self._numbers:
            self._numbers[place] = len(self._sizes)
            self._sizes.append(0)
            self.calls.append(Call("create", place, self._numbers[place]))
        self._open[descriptor] = self._numbers[place], place
        if flags & os.O_TRUNC:
            self._truncate(descriptor, 0)

    def _note_move(self, kind: str, path: Any, target: Any = "") -> None:
        place = self._place(path)
        if place is None:
            return
        to = (self._place(target) or ROOT) if kind == "rename" else ROOT
        number = self._numbers.pop(place, -1)
        if to:
            assert os.path.dirname(to) == os.path.dirname(place), "moved to another folder"
            self._numbers[to] = number
        self.calls.append(Call(kind, place, number, target=to))

    def _recorded_calls(self) -> dict[str, Callable[..., Any]]:
        """Return the functions to put in place of those of the `os` module."""
        real = {name: getattr(os, name) for name in (*_CALLS, *_MOVES)}

        def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
            descriptor: int = real["open"](path, flags, *more, **options)
            self._note_open(path, flags, descriptor)
            return descriptor

        def close(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            real["close"](descriptor)

        def fdopen(descriptor: int, *arguments: Any, **options: Any) -> Any:
            if descriptor in self._open and arguments[0] in ("wb", "ab"):
                return UnbufferedFile(descriptor)
            return real["fdopen"](descriptor, *arguments, **options)

        def write(descriptor: int, data: Any) -> int:
            if descriptor in self._open:
                self._write(descriptor, data)  # behind the end: all such files are appended to
            return real["write"](descriptor, data)  # type: ignore[no-any-return]

        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            if descriptor in self._open:
                self._write(descriptor, data, offset)
            return real["pwrite"](descriptor, data, offset)  # type: ignore[no-any-return]

        def ftruncate(descriptor: int, length: int) -> None:
            real["ftruncate"](descriptor, length)
            if descriptor in self._open:
                self._truncate(descriptor, length)

        def fsync(descriptor: int) -> None:
            if descriptor in self._open:
                number, place = self._open[descriptor]
                kind = "sync folder" if number < 0 else "sync"
                self.calls.append(Call(kind, place, number))

        def move(name: str) -> Callable[..., None]:
            def moved(path: Any, *more: Any, **options: Any) -> None:
                real[name](path, *more, **options)
                self._note_move(_MOVES[name], path, *more[:1])

            return moved

        made: tuple[Callable[..., Any], ...]
        made = (opened, close, fdopen, write, pwrite, ftruncate, fsync)
        return dict(zip(_CALLS, made, strict=True)) | {name: move(name) for name in _MOVES}


_CALLS = ("open", "close", "fdopen", "write", "pwrite", "ftruncate", "fsync")
_MOVES = {
    **dict.fromkeys(("replace", "rename"), "rename"),
    **dict.fromkeys(("unlink", "remove"), "unlink"),
    "mkdir": "mkdir",
    "rmdir": "rmdir",
}


class UnbufferedFile:
    """File opened for writing, whose writes are calls of the `os` module."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> "UnbufferedFile":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def write(self, data: bytes) -> int:
        return os.write(self._descriptor, data)

    def close(self) -> None:
        os.close(self._descriptor)


def _applied(data: bytes, calls: list[Call]) -> bytes:
    """Return contents after writes and truncations; what was never written is zeros."""
    found = bytearray(data)
    for call in calls:
        gap = call.offset - len(found)
        found += bytes(max(gap, 0))
        end = None if call.data is None else call.offset + len(call.data)
        found[call.offset : end] = call.data or b""
    return bytes(found)


def _move(names: dict[str, int], call: Call) -> None:
    """Apply a change of names."""
    if call.kind in ("create", "mkdir"):
        names[call.place] = call.file
        return
    names.pop(call.place, None)
    if call.kind == "rename":
        names[call.target] = call.file


def _left(file: File, model: DiskModel, draw: random.Random, last: Call | None) -> bytes:
    """Return what a cut leaves of a file; last: the call before the cut."""
    if model is DiskModel.LOST:
        return file.synced
    left: list[Call] = []
    for call in file.pending:
        if model is DiskModel.SUBSET and draw.random() < 0.4:
            continue
        is_whole = draw.random() < 0.4 if model is DiskModel.SUBSET else call is not last
        left += [call] if is_whole else _torn(call, len(file.synced), draw)
    return _applied(file.synced, left)


def _torn(call: Call, num_synced: int, draw: random.Random) -> list[Call]:
    """Return a write of which only the beginning is there, or nothing, and zeros behind it.

    What replaces bytes on the disk replaces whole sectors of them, and leaves the rest as it was.
    """
    data, start = call.data, call.offset
    if data is None:
        return [call]
    end = start + draw.choice((0, draw.randint(0, len(data)), len(data)))
    if end < min(num_synced, start + len(data)):
        end = max(end // SECTOR_BYTES * SECTOR_BYTES, start)
    zeros = max(end, num_synced)
    whole = replace(call, data=data[: end - start])
    gap = bytes(max(start + len(data) - zeros, 0))
    return [whole, replace(call, offset=zeros, data=gap)] if gap else [whole]
