"""The names of inputs as they are typed: several of them, and patterns that stand for many."""

import glob
import os
import shlex
from collections.abc import Sequence

from pagedrun.paged.job.inputs.hub_name import HUB_PREFIX
from pagedrun.paged.job.inputs.reader import PARQUET, STDIN, TEXT_SUFFIXES
from pagedrun.paged.job.inputs.remote_file import is_remote, matching
from pagedrun.paged.job.inputs.unpacked_stream import PACKINGS
from pagedrun.paged.values.errors import UsageError

MAX_SHOWN = 60  # characters of what is no name


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs that are named, patterns such as `data/*.jsonl` expanded, each in order of
    the names.

    Raises `UsageError` for a pattern that nothing matches, an input that is named twice, standard
    input beside others, and a question in place of a file's name.
    """
    for name in names:
        if _is_question(name):
            shown = name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 1]}…"
            raise UsageError(
                f"{shlex.quote(shown)} is no file; INPUT is a file of rows, and one question is "
                f"asked with: pagedrun ask {shlex.quote(shown)}"
            )
    found = [each for name in names for each in _expanded(name)]
    for place, name in enumerate(found):
        if name in found[:place]:
            raise UsageError(f"{name} is named twice; its rows would be answered twice")
    if STDIN in found and len(found) > 1:
        raise UsageError(f"{STDIN}, standard input, cannot be read beside other inputs")
    return tuple(found)


def _is_question(name: str) -> bool:
    """Whether a name is that of no file and reads like text: words, or a question mark at its end.

    What begins like a path or ends like a file of rows is one that was mistyped.
    """
    has_words = len(name.split()) > 1
    if not has_words and (os.sep in name or not name.endswith("?")):
        return False
    endings = (*TEXT_SUFFIXES, PARQUET, *PACKINGS)
    is_path = name.startswith((".", os.sep, "~", HUB_PREFIX)) or "*" in name or is_remote(name)
    return not is_path and not name.lower().endswith(endings) and not os.path.lexists(name)


def _expanded(name: str) -> list[str]:
    if not glob.has_magic(name) or os.path.lexists(name):
        return [name]
    names = matching(name) if is_remote(name) else sorted(glob.glob(name, recursive=True))
    if not names and not is_remote(name) and ":" in name:
        return [name]  # a dataset on the hub, whose own reader says what is wrong
    if not names:
        raise UsageError(f"{name}: no file matches this pattern; check the path")
    return names
