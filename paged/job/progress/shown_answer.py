"""ShownAnswer: what became of a row, as far as a screen shows it."""

from dataclasses import dataclass

from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import RowError, as_flag
from pagedrun.paged.values.request import Completion

MAX_CHARS = 2000  # more than any screen shows of it


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """The text of a row's answer, cut to MAX_CHARS; without one it is None, and `error` says why.
    `index` is the row's place in the input, from 0.
    """

    index: int
    id: str | int
    text: str | None
    error: str | None = None

    @classmethod
    def of(cls, row: JobRow, completion: Completion) -> "ShownAnswer":
        """Return what the engine said, be it an answer or an error."""
        if completion.error is not None:
            return cls.failed(row, completion.error)
        return cls(row.index, row.id, (completion.text or "")[:MAX_CHARS])

    @classmethod
    def failed(cls, row: JobRow, error: RowError) -> "ShownAnswer":
        """Return what there is to say of a row without an answer."""
        return cls(row.index, row.id, None, error.shown(as_flag)[:MAX_CHARS])
