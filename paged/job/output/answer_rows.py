"""Output rows of a job: lines of results and errors, and the files made of them.

`AnswerRows` are those of generated text; those of vectors, scores and labels are
`pooled_rows.PooledRows`.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from pagedrun.paged.job.inputs.row import InputFacts
from pagedrun.paged.job.output.kept_tables import KeptTables
from pagedrun.paged.job.output.output_layout import Conversion, OutputLayout
from pagedrun.paged.job.output.output_row import answered_row, failed_row
from pagedrun.paged.job.output.saved_rows import FinishedRows
from pagedrun.paged.job.output.writer import Indexed
from pagedrun.paged.job.progress import AnswerPreview
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion

Lines = Callable[[], Iterator[bytes]]
"""Returns the lines of a journal, in input order."""


class ResultRows(Protocol):
    """Makes the lines of an output, keeps what they refer to, and converts them to files."""

    @property
    def has_vectors(self) -> bool:
        """True if lines refer to vectors in a file, which `sync` makes durable."""
        ...

    def begin(self, finished: FinishedRows, read: Callable[[int, int], bytes]) -> None:
        """Open the files beside the journal.

        finished: rows of an earlier run. read: returns the bytes of a line by its offset and size.
        """

    def answered(self, row: JobRow, completion: Completion) -> Indexed:
        """Return the line of a completion, with its result or an error. Raises `OutputError`."""
        ...

    def failed(self, row: JobRow, error: RowError) -> Indexed:
        """Return the line of an invalid row."""
        ...

    def preview(self, row: JobRow, completion: Completion) -> AnswerPreview:
        """Return a result or error in a few words."""
        ...

    def sync(self) -> None:
        """Make durable what the lines so far refer to. Raises `OutputError`."""

    def convert(
        self, lines: Lines, num_rows: int, facts: InputFacts, kept: KeptTables | None
    ) -> list[str]:
        """Write the output files; return warnings. Raises `OutputError`.

        kept: the tables of an Arrow input.
        """
        ...

    def remove(self) -> None:
        """Remove what the lines refer to, after the journal: all of it is in the output files."""

    def close(self) -> None:
        """Close the files beside the journal."""


class AnswerRows:
    """Rows of generated text; implements `ResultRows`. All of it is in the lines."""

    has_vectors = False

    def __init__(self, layout: OutputLayout) -> None:
        self._layout = layout

    def begin(self, finished: FinishedRows, read: Callable[[int, int], bytes]) -> None:
        """Do nothing."""

    def answered(self, row: JobRow, completion: Completion) -> Indexed:
        """Return the line of a completion, with answers or an error."""
        return answered_row(row, completion)

    def failed(self, row: JobRow, error: RowError) -> Indexed:
        """Return the line of an invalid row."""
        return failed_row(row, error)

    def preview(self, row: JobRow, completion: Completion) -> AnswerPreview:
        """Return the beginning of the answer, or the error."""
        return AnswerPreview.of(row, completion)

    def sync(self) -> None:
        """Do nothing."""

    def convert(
        self, lines: Lines, num_rows: int, facts: InputFacts, kept: KeptTables | None
    ) -> list[str]:
        """Write the output files; return warnings. Raises `OutputError`."""
        return Conversion(self._layout, lines, num_rows, facts, kept=kept).write()

    def remove(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
