"""Digests of weight files, each file read once and its digest remembered in the store."""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from pagedrun.paged.files.atomic import replace_json

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
    except (OSError, ValueError):
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
