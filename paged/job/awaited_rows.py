"""AwaitedRows: the rows that the engine was asked and has not answered."""

from collections.abc import Iterable

from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import EngineError
from pagedrun.paged.values.request import Completion


class AwaitedRows:
    """Each row is answered once, with as many answers as it asked for."""

    def __init__(self) -> None:
        self._rows: dict[int, JobRow] = {}  # by index

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, rows: Iterable[JobRow]) -> None:
        """Take note of rows that the engine is asked now."""
        self._rows |= {row.index: row for row in rows}

    def take(self, completion: Completion) -> JobRow:
        """Return the row that `completion` answers; it is awaited no more.

        Raises `EngineError` if none waits for it, or if it has too few answers or too many.
        """
        row = self._rows.pop(completion.request.index, None)
        if row is None:
            raise EngineError(
                f"row {completion.request.index} was answered twice or never asked; please report "
                "this"
            )
        vote, num_asked = completion.vote, completion.request.params.n
        expected = num_asked if vote is None else vote.drawn
        num_answers = len(completion.scores or completion.outputs)
        if completion.error is None and num_answers != expected:
            raise EngineError(
                f"row {row.index} has {num_answers} answers instead of {expected}; please report "
                "this"
            )
        return row
