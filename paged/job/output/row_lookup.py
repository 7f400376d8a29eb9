"""From what a user calls a row to its index: an index as it is, an id by the run's output."""

import json
from collections.abc import Sequence
from pathlib import Path

from pagedrun.paged.job.output.saved_lines import saved_lines
from pagedrun.paged.job.output.saved_row import SavedRow
from pagedrun.paged.values.errors import UsageError, option

ID_PREFIX = "id:"
MAX_DIGITS = 10


def row_index(named: str) -> int | None:
    """Return the index that `named` is, None if it is an id: not a number, or after `id:`."""
    if named.isdecimal() and named.isascii() and len(named) <= MAX_DIGITS:
        return int(named)
    return None


def find_rows(names: Sequence[str], output: Path | None) -> dict[str, int]:
    """Return each name's row index. The output is streamed once if a name is an id.

    Raises `UsageError` for an id that is not in it.
    """
    found = {name: index for name in names if (index := row_index(name)) is not None}
    missing = {_id_of(name): name for name in names if name not in found}
    if not missing:
        return found
    if output is None:
        name = next(iter(missing.values()))
        raise UsageError(
            f"{option('row')} {name}: ids are looked up in the output, which does not exist; "
            "name the row by its index, counted from 0"
        )
    try:
        for line in saved_lines(output):
            for row_id, index in _named_in(line, missing):
                found[missing.pop(row_id)] = index
            if not missing:
                break
    except OSError as error:
        raise UsageError(f"{output} cannot be read ({error.strerror})") from error
    if missing:
        name = next(iter(missing.values()))
        raise UsageError(
            f"{option('row')} {name}: no row of {output} has this id; a whole number names a row "
            "by its index, counted from 0"
        )
    return found


def _id_of(name: str) -> str:
    return name.removeprefix(ID_PREFIX)


def _named_in(line: bytes, wanted: dict[str, str]) -> list[tuple[str, int]]:
    """Return the wanted id that the line's row has, with the row's index; nothing if none."""
    # Parsing a line costs far more than looking for a few bytes in it.
    if not any(_as_written(row_id) in line for row_id in wanted):
        return []
    row = SavedRow.parse(line)
    return [] if row is None else [(name, row.index) for name in wanted if name in row.ids]


def _as_written(row_id: str) -> bytes:
    """Return the id as it is written in a line, be it a string or a number."""
    return json.dumps(row_id, ensure_ascii=False).encode("utf-8", "replace").strip(b'"')
