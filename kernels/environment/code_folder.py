"""Folders for compiled kernels, private to the user because their content is executed."""

import os
import stat
from pathlib import Path

SOURCES = Path(__file__).parents[1]


def keep_code_private() -> None:
    """Set private cache folders for Triton and, if the source folder is not writable, Numba.

    Nothing is stored in a model's folder or in the current one. Variables set by the user stay.
    """
    names = {"TRITON_CACHE_DIR": "triton"}
    if not os.access(SOURCES, os.W_OK):  # else beside the source, which is as good as the source
        names["NUMBA_CACHE_DIR"] = "numba"
    for variable, name in names.items():
        folder = None if variable in os.environ else private_folder(name)
        if folder is not None:
            os.environ[variable] = str(folder)


def private_folder(name: str) -> Path | None:
    """Return the folder `name` in the user's cache, created with mode 0700 if missing.

    None if it cannot be created, or if another user owns it or may write to it.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    folder = cache / "pagedrun" / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            found = os.lstat(each)
            others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or others_write:
                return None
    except (OSError, RuntimeError):  # no space, no permission; no home
        return None
    return folder
