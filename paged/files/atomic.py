"""Atomic writes of small files, and the JSON form of dataclasses.

A file is written beside its target, synced and renamed: after a crash the target has its old or
its new contents. Dataclasses are written as objects of their fields, in the order of
declaration.
"""

import errno
import json
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import datetime
from functools import cache
from pathlib import Path

from pagedrun.paged.values.json_value import ALWAYS_WRITTEN

PRIVATE_MODE = 0o600  # prompts and answers are the owner's
# Endings of files beside an output.
_BESIDE = r"\.(run|report|state)\.json|\.errors\.jsonl|(\.replica-\d+)?\.snapshot\.npz"


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` to a temporary file and rename it to `path`; an `OSError` keeps the old file.

    The temporary name is random, so that no link can be placed there in advance.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes for `path` and the files beside it.

    No other process may be writing them. Errors are ignored.
    """
    name = re.compile(rf"\.{re.escape(path.name)}({_BESIDE})?\.[0-9a-f]{{16}}\.tmp")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                os.unlink(entry.path)


def replace_json(path: Path, value: object) -> None:
    """Write one JSON object, or the fields of a dataclass, to `path` atomically."""
    text = json.dumps(value, default=json_fields, indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(path, [text.encode("utf-8", "replace"), b"\n"])


def make_folder(path: Path, mode: int = 0o777, *, parents: bool = True) -> None:
    """Make a folder, and those that hold it if `parents`, unless it exists; durable."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode, parents=parents, exist_ok=True)
    for each in new:
        with suppress(PermissionError):  # a folder that may be written, but not read
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Make a new or moved name in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def json_fields(value: object) -> dict[str, object] | str:
    """Return the JSON form of a value; for `json.dumps(default=...)`.

    A dataclass becomes its fields, without those equal to their defaults unless they are
    `ALWAYS_WRITTEN`. A path becomes its text, a time ISO 8601. Raises `TypeError` for anything
    else.
    """
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    kind: type = type(value)
    named = ((name, getattr(value, name), default) for name, default in _fields(kind))
    return {name: found for name, found, default in named if found != default}


@cache  # inspecting a class takes longer than writing a row
def _fields(kind: type) -> tuple[tuple[str, object], ...]:
    """Return names and omitted values of the fields of a dataclass, `MISSING` without one."""
    return tuple(
        (each.name, MISSING if each.metadata == ALWAYS_WRITTEN else each.default)
        for each in fields(kind)
    )
