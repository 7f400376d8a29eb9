"""FinishedRows: what an interrupted run has left in the output, for the next one to go on from."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pagedrun.paged.job.output.saved_row import SavedRow
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """A whole line of the output: its row and its place."""

    index: int
    offset: int
    num_bytes: int
    has_failed: bool


@dataclass(slots=True)
class FinishedRows:
    """The rows in an output file, by index. `num_bytes` is where the last whole line ends.

    A run that was killed may have left a part of a line at the end; it is not counted. With
    `is_all`, the rows are all there are, in files that were made of them, and have no lines.
    """

    rows: dict[int, FinishedRow] = field(default_factory=dict)
    num_bytes: int = 0
    is_all: bool = False

    @classmethod
    def read(cls, path: str) -> "FinishedRows":
        """Read an output; raises `UsageError` with a line number if it is not one of ours."""
        found = cls()
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        break  # torn: the run died while writing it
                    found._take(path, number, line)
        except OSError as error:
            raise UsageError(
                f"{option('resume')}: {path} cannot be read ({error.strerror})"
            ) from error
        return found

    @classmethod
    def all(cls, num_rows: int) -> "FinishedRows":
        """Return what a run has left that answered every row and made its files of them."""
        return cls({i: FinishedRow(i, 0, 0, False) for i in range(num_rows)}, is_all=True)

    @property
    def num_failed(self) -> int:
        """Rows that have an error for an answer."""
        return sum(row.has_failed for row in self.rows.values())

    def answered(self) -> Iterator[FinishedRow]:
        """Yield the rows that are answered, in the order of the file."""
        return (row for row in self.rows.values() if not row.has_failed)

    def _take(self, path: str, number: int, line: bytes) -> None:
        row = SavedRow.parse(line)
        if row is None:
            raise UsageError(
                f"{option('resume')}: {path}, line {number} is not an output row; this file "
                f"cannot be continued: name another output, or pass {option('overwrite')} "
                f"instead of {option('resume')}"
            )
        if row.index in self.rows:
            raise UsageError(
                f"{option('resume')}: {path}, line {number} has a second answer to row "
                f"{row.index}; this file cannot be continued: name another output, or pass "
                f"{option('overwrite')} instead of {option('resume')}"
            )
        self.rows[row.index] = FinishedRow(row.index, self.num_bytes, len(line), row.has_failed)
        self.num_bytes += len(line)
