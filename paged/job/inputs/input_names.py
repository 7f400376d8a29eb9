"""Names of inputs as typed: several files, patterns and folders, expanded to files."""

import glob
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from pagedrun.paged.job.inputs.arrow_source import HUB_PREFIX
from pagedrun.paged.job.inputs.byte_streams import COMPRESSIONS, is_remote, matching
from pagedrun.paged.job.inputs.reader import (
    BY_NAME,
    PARQUET,
    STDIN,
    TEXT_SUFFIXES,
    Reading,
    is_saved_dataset,
)
from pagedrun.paged.values.errors import UsageError

MAX_SHOWN = 60  # characters that no ordinary name has


def expand(
    names: Sequence[str], reading: Reading = BY_NAME, side_suffixes: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the named inputs, with patterns such as `data/*.jsonl` and folders expanded in name
    order.

    Outputs in a folder are skipped: files with one of `side_suffixes`, and their main files. Raises
    `UsageError` for a pattern without a match, a folder with files of several kinds, an input named
    twice, standard input beside others, and a question in place of a file's name.
    """
    for name in names:
        if _is_question(name):
            shown = name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 1]}…"
            raise UsageError(
                f"{shlex.quote(shown)} is not a file; INPUT is a file of rows. To ask a single "
                f"question: pagedrun ask {shlex.quote(shown)}"
            )
    found = [
        each
        for name in names
        for file in _expanded(name)
        for each in _files_of(file, reading, side_suffixes)
    ]
    for index, name in enumerate(found):
        if name in found[:index]:
            raise UsageError(f"{name} is named twice; its rows would be answered twice")
    if STDIN in found and len(found) > 1:
        raise UsageError(f"{STDIN}, standard input, cannot be combined with other inputs")
    return tuple(found)


def _is_question(name: str) -> bool:
    """Return true if a name without a file reads like text: words, or a question mark at its end.

    Names that begin like a path or end like a file of rows are typing mistakes instead.
    """
    has_words = len(name.split()) > 1
    if not has_words and (os.sep in name or not name.endswith("?")):
        return False
    endings = (*TEXT_SUFFIXES, PARQUET, *COMPRESSIONS)
    is_path = name.startswith((".", os.sep, "~", HUB_PREFIX)) or "*" in name or is_remote(name)
    return not is_path and not name.lower().endswith(endings) and not os.path.lexists(name)


def _expanded(name: str) -> list[str]:
    if not glob.has_magic(name) or os.path.lexists(name):
        return [name]
    names = matching(name) if is_remote(name) else sorted(glob.glob(name, recursive=True))
    if not names and not is_remote(name) and ":" in name:
        return [name]  # a dataset on the hub, whose own reader reports errors
    if not names:
        raise UsageError(f"{name}: no file matches this pattern; check the path")
    return names


def _files_of(name: str, reading: Reading, side_suffixes: tuple[str, ...]) -> list[str]:
    """Return the files of a folder in name order; for anything else its name.

    Hidden files and those that begin with `_`, such as Spark's, are skipped; so are outputs: they
    must not become inputs of the same command when it is resumed.
    """
    if not os.path.isdir(name) or is_saved_dataset(name):
        return [name]
    try:
        found = sorted(each for each in os.listdir(name) if not each.startswith((".", "_")))
    except OSError as error:
        raise UsageError(f"{name}: cannot be read ({error.strerror}); check the path") from error
    files = [
        each
        for each in found
        if not each.endswith(side_suffixes)
        and not any(f"{each}{suffix}" in found for suffix in side_suffixes)
    ]
    for each in files:
        if not os.path.isfile(os.path.join(name, each)):
            raise UsageError(
                f"{name} contains {each}, which is not a file; select the files to read by a "
                f"pattern, such as '{os.path.join(name, '*.csv')}'"
            )
    kinds: dict[str, str] = {}
    for each in files:
        kinds.setdefault(str(reading.format_of(each) or Path(each).suffix), each)
    if not files:
        raise UsageError(f"{name} contains no file to read; check the path")
    if len(kinds) > 1:
        one, other, *_ = kinds.values()
        raise UsageError(
            f"{name} contains files of several kinds, such as {one} and {other}; select "
            "those of one kind by a pattern, such as "
            f"'{os.path.join(name, '*' + Path(one).suffix)}'"
        )
    return [os.path.join(name, each) for each in files]
