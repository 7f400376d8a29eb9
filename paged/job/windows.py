"""Windows: the rows of an input in pieces that fit into memory, however long the input is."""

from collections.abc import Iterable, Iterator
from itertools import islice

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.reading_stop import ReadingStop
from pagedrun.paged.job.inputs.row import Row, place_of
from pagedrun.paged.job.inputs.row_source import RowSource
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.planning.windows import Windows
from pagedrun.paged.values.errors import RowError, UsageError, option


class RowWindows:
    """Reads one window after the other; `is_last` says whether there is another one.

    Raises `UsageError` if the source cannot be read, and for a bad row of a `strict` job.
    """

    def __init__(
        self, source: RowSource, config: JobConfig, stop: ReadingStop | None = None
    ) -> None:
        self._config = config
        self._source = source
        self._stop = stop or ReadingStop()
        rows = self.unless_stopped(islice(iter(source), config.limit))
        wanted = self._refuse_bad(rows) if config.strict else rows
        self._windows = Windows(self._counted(wanted), config.window, lambda: source.num_bytes_read)
        self._num_read = 0
        self._digest: InputDigest | None = None

    @property
    def is_last(self) -> bool:
        """Whether no row is left."""
        return self._digest is not None

    def read(self) -> list[Row]:
        """Return the rows of the next window."""
        try:
            rows = self._windows.read()
            if self._windows.is_last:
                self._finish()
            return rows
        except OSError as error:
            name = self._config.input_shown
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from error

    def unless_stopped(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; raises `ReadingStoppedError` when nobody wants them any more."""
        for row in rows:
            self._stop.check()
            yield row

    def digest(self) -> InputDigest:
        """Return what was read so far, of all rows once the last window was."""
        return self._digest or self._source.digest(whole=False)

    def _counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._num_read += 1
            yield row

    def _refuse_bad(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row.error is not None:
                raise refused_row(self._config.input, row, row.error)
            yield row

    def _finish(self) -> None:
        was_cut = self._num_read == self._config.limit
        whole = not was_cut or self._source.drain()
        self._digest = self._source.digest(whole=whole)


def refused_row(name: str, row: Row | JobRow, error: RowError) -> UsageError:
    """Return the refusal of a whole input because of one row, as `strict` asks for."""
    place = place_of(row.unit, row.line, row.file or name)
    return UsageError(
        f"{place}: {error.marked} ({error.code}); {option('strict')} refuses the whole "
        "input; without it the row gets an error instead of an answer"
    )
