"""Where a page may go: asked before a run begins, because afterwards the refusal costs the page."""

import os
from collections.abc import Iterable
from pathlib import Path

from pagedrun.paged.values.errors import UsageError, option

_HTML = option("html")
MARK = b'<meta name="generator" content="pagedrun">'  # is near the beginning of every page
_MARK_WITHIN = 200


def check_target(
    path: Path,
    others: Iterable[tuple[str | Path | None, str]] = (),
    *,
    overwrite: bool | None = None,
) -> None:
    """Raise `UsageError` if a page cannot be written to `path`.

    `others` are files that it must not be, each with what it is to the user. `overwrite` says
    whether a file that is there already may be replaced; None for a command without that flag: it
    replaces pages, and nothing else.
    """
    for other, what in others:
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"{_HTML} {path} is the {what} itself; name another file")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{_HTML} {path}: name a file in an existing folder")
    if path.exists() and not path.is_file():
        raise UsageError(f"{_HTML} {path} is not a regular file; name another one")
    if overwrite is None and path.exists() and not _is_page(path):
        raise UsageError(f"{_HTML} {path} exists and is not a page of pagedrun; name another file")
    if overwrite is False and path.exists():
        raise UsageError(f"{_HTML} {path} exists; pass {option('overwrite')} or name another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{_HTML} {path}: the folder {path.parent} cannot be written to")


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK in file.read(_MARK_WITHIN)
    except OSError:
        return False
