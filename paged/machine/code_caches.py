"""Folders that outlast a run: models of the hub, and compiled kernels."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from pagedrun.kernels.environment.code_folder import SOURCES
from pagedrun.paged.machine.findings import Findings

LITTLE_SPACE = 2**30  # bytes
NUMBA_FILES = ("*.nbi", "*.nbc")


class CacheFacts(TypedDict):
    """A folder, what is in it, and what is free on its disk, in bytes; None where it is not there
    or there is none.
    """

    name: str
    path: str | None
    files: int
    bytes: int
    free: int | None


def cache_facts(findings: Findings) -> list[CacheFacts]:
    """Return the folders that runs keep things in. Call it with the environment prepared."""
    from huggingface_hub import constants  # here: it takes a moment

    hub = _facts("hub models", Path(constants.HF_HUB_CACHE), ("*",))
    found = [hub, *code_caches()]
    found.append({"name": "prefix store", "path": None, "files": 0, "bytes": 0, "free": None})
    if not os.access(_numba_folder(), os.W_OK):
        findings.advice.append(
            f"compiled kernels cannot be kept in {_numba_folder()}, so every run compiles "
            "them, which takes up to a minute; set NUMBA_CACHE_DIR to a writable folder"
        )
    for each in found:
        if each["free"] is not None and each["free"] < LITTLE_SPACE:
            findings.advice.append(
                f"{each['path']}: only {each['free'] / 2**20:,.0f} MiB are free on this disk"
            )
    return found


def code_caches() -> list[CacheFacts]:
    """Return the folders of compiled kernels: those of CPUs, and of GPUs where one is named."""
    triton = os.environ.get("TRITON_CACHE_DIR")
    found = [_facts("CPU kernels", _numba_folder(), NUMBA_FILES)]
    return [*found, _facts("GPU kernels", Path(triton), ("*",))] if triton else found


def _numba_folder() -> Path:
    """Return where Numba keeps code: a folder that is named to it, else beside the source."""
    return Path(os.environ.get("NUMBA_CACHE_DIR", SOURCES))


def _facts(name: str, folder: Path, patterns: tuple[str, ...]) -> CacheFacts:
    sizes = [size for pattern in patterns for size in _sizes(folder, pattern)]
    free = None
    if folder.is_dir():
        free = shutil.disk_usage(folder).free
    return {
        "name": name,
        "path": str(folder),
        "files": len(sizes),
        "bytes": sum(sizes),
        "free": free,
    }


def _sizes(folder: Path, pattern: str) -> Iterator[int]:
    """Yield the bytes of each file; the hub's links to files are not counted beside them."""
    for path in folder.rglob(pattern):
        try:
            if not path.is_symlink() and path.is_file():
                yield path.stat().st_size
        except OSError:
            continue  # it went away, or may not be looked at
