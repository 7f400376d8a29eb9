"""Where a page may go: asked before a run begins, because afterwards the refusal costs the page."""

import os
from collections.abc import Iterable
from pathlib import Path

from pagedrun.paged.errors import UsageError

FLAG = "--html"


def check_target(
    path: Path, others: Iterable[tuple[str | Path | None, str]] = (), *, replace: bool
) -> None:
    """Raise `UsageError` if a page cannot be written to `path`.

    `others` are files that it must not be, each with what it is to the user. `replace` says whether
    a file that is there already may be replaced.
    """
    for other, what in others:
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"{FLAG} {path} is the {what} itself; name another file")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{FLAG} {path}: name a file in an existing folder")
    if path.exists() and not path.is_file():
        raise UsageError(f"{FLAG} {path} is no regular file; name another one")
    if path.exists() and not replace:
        raise UsageError(f"{FLAG} {path} exists; pass --overwrite or name another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{FLAG} {path}: the folder {path.parent} cannot be written to")
