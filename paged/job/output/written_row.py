"""The row that is written for what became of a row: its own kind for rows of OpenAI batch files."""

from dataclasses import replace

from pagedrun.paged.job.inputs.row import at_line
from pagedrun.paged.job.output.batch_row import BROKEN, REFUSED, BatchRow
from pagedrun.paged.job.output.output_row import OutputRow
from pagedrun.paged.job.output.usage import Usage
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion

WrittenRow = OutputRow | BatchRow


def answered_row(row: JobRow, completion: Completion) -> WrittenRow:
    """Return what to write for what the engine said, be it answers or an error."""
    if completion.error is not None:
        return failed_row(row, completion.error, BROKEN)
    if row.call is not None:
        answer = BatchRow.answered(row.index, row.call, completion, Usage.of(row, completion))
        return _with_columns(answer, row)
    return OutputRow.answered(row, completion)


def failed_row(row: JobRow, error: RowError, status_code: int = REFUSED) -> WrittenRow:
    """Return what to write for a row without an answer; a `BatchCall` has a status code too."""
    error = at_line(error, row.line)
    if row.call is not None:
        return _with_columns(BatchRow.failed(row.index, row.call, error, status_code), row)
    return OutputRow.failed(row, error)


def _with_columns(answer: BatchRow, row: JobRow) -> BatchRow:
    """Return a row of a batch file with the columns of its input, where they are kept."""
    if row.used is None:
        return answer
    return replace(answer, input=row.input, used=row.used)
