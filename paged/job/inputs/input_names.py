"""The names of inputs as they are typed: several of them, and patterns that stand for many."""

import glob
import os
from collections.abc import Sequence

from pagedrun.paged.job.inputs.reader import STDIN
from pagedrun.paged.job.inputs.remote_file import is_remote, matching
from pagedrun.paged.values.errors import UsageError


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs that are named, patterns such as `data/*.jsonl` expanded, each in order of
    the names.

    Raises `UsageError` for a pattern that nothing matches, an input that is named twice, and
    standard input beside others.
    """
    found = [each for name in names for each in _expanded(name)]
    for place, name in enumerate(found):
        if name in found[:place]:
            raise UsageError(f"{name} is named twice; its rows would be answered twice")
    if STDIN in found and len(found) > 1:
        raise UsageError(f"{STDIN}, standard input, cannot be read beside other inputs")
    return tuple(found)


def _expanded(name: str) -> list[str]:
    if not glob.has_magic(name) or os.path.lexists(name):
        return [name]
    names = matching(name) if is_remote(name) else sorted(glob.glob(name, recursive=True))
    if not names and not is_remote(name) and ":" in name:
        return [name]  # a dataset on the hub, whose own reader says what is wrong
    if not names:
        raise UsageError(f"{name}: no file matches this pattern; check the path")
    return names
