"""Asked: what requests ask of one processor of logits."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from pagedrun.paged.scheduling.sequence_table import Int64s

T = TypeVar("T")


class Asked(Generic[T]):
    """What each request asks for, by its index; of requests that ask for nothing there is none."""

    def __init__(self) -> None:
        self._by_row: dict[int, T] = {}

    def __setitem__(self, row: int, asked: T) -> None:
        self._by_row[row] = asked

    def __bool__(self) -> bool:
        return bool(self._by_row)

    def pop(self, row: int) -> T | None:
        """Forget what a request asks for; return it, None if it asks for nothing."""
        return self._by_row.pop(row, None)

    def is_asked(self, rows: Int64s) -> bool:
        """Return whether one of these requests, [num_rows] int64, asks for something."""
        return bool(self._by_row) and not self._by_row.keys().isdisjoint(rows.tolist())

    def found(self, rows: Int64s) -> Iterator[tuple[int, T]]:
        """Yield the place in `rows`, [num_rows] int64, of each that asks for something, and it."""
        if not self._by_row:
            return
        for place, row in enumerate(rows.tolist()):
            asked = self._by_row.get(row)
            if asked is not None:
                yield place, asked
