"""UniqueIds: answers are joined to their rows by id, so no two rows may have the same."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.values.errors import RowError, UsageError

MAX_SHOWN_DUPLICATES = 10


class UniqueIds:
    """The ids of all rows so far, of which a digest and a place are kept, 136 bytes for each; 1 and
    "1" are the same.

    `source` is used in messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._first: dict[bytes, int | tuple[str, int]] = {}  # line, or input and line

    def refuse_repeated(self, rows: Iterable[Row]) -> None:
        """Take rows in; raise `UsageError` with line numbers if an id occurs twice."""
        found: list[str] = []
        num_duplicates = 0
        for row in rows:
            first = self._first_of(row)
            if first != _place(row):
                num_duplicates += 1
                if len(found) < MAX_SHOWN_DUPLICATES:
                    found.append(f"{_shown(row)} on {_both(first, row)}")
        if found:
            more = f" and {num_duplicates - len(found)} more" if num_duplicates > len(found) else ""
            raise UsageError(
                f"{self._source}: ids must be unique, but {'; '.join(found)}{more}; give each "
                "row its own id, or leave the column out"
            )

    def fail_repeated(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Take rows in that come when others are being answered: a repeated id fails its row."""
        for row in rows:
            first = self._first_of(row)
            if first == _place(row) or row.error is not None:
                yield row
            else:
                where = _where(first, row)
                message = f"ids must be unique, but {_shown(row)} is that of {where} too"
                yield replace(
                    row, error=RowError("duplicate_id", message, param="id", line=row.line)
                )

    def _first_of(self, row: Row) -> int | tuple[str, int]:
        key = hashlib.blake2b(str(row.id).encode("utf-8", "replace"), digest_size=16).digest()
        return self._first.setdefault(key, _place(row))


def _place(row: Row) -> int | tuple[str, int]:
    return row.line if row.file is None else (row.file, row.line)


def _where(place: int | tuple[str, int], row: Row) -> str:
    return f"{row.unit} {place}" if isinstance(place, int) else f"{place[0]}, {row.unit} {place[1]}"


def _both(first: int | tuple[str, int], row: Row) -> str:
    if isinstance(first, int):
        return f"{row.unit}s {first} and {row.line}"
    return f"{_where(first, row)} and {row.place}"


def _shown(row: Row) -> str:
    name = str(row.id)
    return repr(name if len(name) <= 40 else name[:39] + "…")
