"""Writer of output rows, in the order of completion or of the input, and its disk space."""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from pagedrun.paged.files.atomic import json_fields, replace_file
from pagedrun.paged.job.output.output_file import OutputError, OutputFile
from pagedrun.paged.job.output.saved_rows import SYNC_ROWS, FinishedRows, Spans
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import EngineError

SYNC_SECONDS = 1.0  # rows are synced to disk after this time, or after `SYNC_ROWS`
SYNC_BYTES = 2**24  # of rows that wait in memory


class Indexed(Protocol):
    """Dataclass written as an output row."""

    @property
    def index(self) -> int:
        """Row index in the input."""


def row_line(row: Indexed) -> bytes:
    """Return the line of a row, its end included."""
    text = json.dumps(
        row, default=json_fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    # "replace": a row is never lost for invalid text of a model.
    return text.encode("utf-8", "replace") + b"\n"


class RowWriter:
    """Appends rows to a claimed output.

    With `ordered`, `finish` sorts them by their index; for a journal, `sorted_lines` yields them
    sorted. `hold` blocks signals while a row is written. `shape` converts a row's line to its
    written form. `before_sync` makes durable what the rows refer to: they are appended after it, so
    that no row outlives that in a power failure. `after_sync` makes durable what is recorded of
    them.
    """

    def __init__(
        self,
        output: OutputFile,
        *,
        ordered: bool = False,
        is_journal: bool = False,
        hold: Callable[[], AbstractContextManager[None]] = nullcontext,
        shape: Callable[[bytes], bytes] | None = None,
        before_sync: Callable[[], None] | None = None,
        after_sync: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._sorts = ordered and not is_journal
        self._spans = Spans() if ordered or is_journal else None
        self._hold = hold
        self._shape = shape
        self._before_sync = before_sync
        self._after_sync = after_sync
        self._delayed: list[tuple[int, bytes]] = []  # index and line of rows not yet appended
        self._delayed_bytes = 0
        self._clock = clock
        self._synced = clock()
        self._num_unsynced = 0
        self._num_rows = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows so far, those of an earlier run included."""
        return self._output.num_bytes

    @property
    def num_rows(self) -> int:
        """Number of rows in the output after the next sync, those of an earlier run included."""
        return self._num_rows + len(self._delayed)

    @property
    def is_resumable(self) -> bool:
        """True if another run can resume the output."""
        return self._output.is_regular

    def begin(self, finished: FinishedRows | None = None) -> None:
        """Keep the `finished` rows of the output and drop everything else; call once, before the
        first row.
        """
        finished = finished or FinishedRows()
        self._output.begin(finished.num_bytes)
        self._num_rows = len(finished)
        if self._spans is not None:
            for line in finished.lines:
                self._spans.add(*line)

    def write(self, row: Indexed) -> bytes:
        """Append one row with a single write, at once or before the next sync; return its line.

        Rows that have waited long enough are synced before it, so that what the caller records of
        a row is synced with it. Raises `OutputError`.
        """
        self.sync_if_due()
        data = row_line(row)
        if self._shape is not None:
            data = self._shape(data)
        with self._hold():
            self._num_unsynced += 1
            if self._before_sync is None:
                self._append(row.index, data)
            else:
                self._delayed.append((row.index, data))
                self._delayed_bytes += len(data)
        return data

    def sync_if_due(self) -> None:
        """Sync rows that have waited long enough; call it regularly."""
        is_full = self._num_unsynced >= SYNC_ROWS or self._delayed_bytes >= SYNC_BYTES
        if is_full or (self._num_unsynced and self._clock() - self._synced >= SYNC_SECONDS):
            self.sync()

    def sync(self) -> None:
        """Make all rows so far durable. Raises `OutputError`."""
        if self._before_sync is not None:
            with self._hold():
                delayed, self._delayed, self._delayed_bytes = self._delayed, [], 0
                self._before_sync()
                for index, data in delayed:
                    self._append(index, data)
        self._output.sync()
        self._after_sync()
        self._synced = self._clock()
        self._num_unsynced = 0

    def _append(self, index: int, data: bytes) -> None:
        offset = self._output.append(data)
        self._num_rows += 1
        if self._spans is not None:
            self._spans.add(index, offset, len(data))

    def finish(self, num_rows: int) -> None:
        """Sync all rows, and sort them if requested.

        Raises `OutputError` if the output does not hold the written bytes, and `EngineError` unless
        it has `num_rows` rows.
        """
        self.sync()
        self._output.check()
        if num_rows != self._num_rows:
            raise EngineError(
                f"{num_rows} rows are accounted for, but {self._num_rows} were written; please "
                "report this"
            )
        if self._sorts:
            self._sort()

    def sorted_lines(self) -> Iterator[bytes]:
        """Yield the rows in input order, each with its newline, of a journal or an
        unsorted output.
        """
        for offset, num_bytes in () if self._spans is None else self._spans.in_order():
            yield self._output.read(offset, num_bytes)

    def _sort(self) -> None:
        path = Path(os.path.realpath(self._output.path))
        try:
            replace_file(path, self.sorted_lines())
        except OSError as error:
            raise OutputError(
                f"{path} could not be sorted by input order ({error.strerror}); its rows are in "
                "the order in which they finished",
                error,
            ) from error


LEAST_ROW_BYTES = 220  # the keys of an output row
TOKEN_BYTES = 10  # of an answer: its id and its part of the text
FULL = (errno.ENOSPC, errno.EDQUOT)


def space_warning(output: OutputFile, rows: Sequence[JobRow], *, copies: int) -> str | None:
    """Return a warning if the output's disk clearly has too little room for `rows`.

    copies: number of times a row is written before the first copy is removed.
    """
    if not output.is_regular:
        return None
    least = len(rows) * LEAST_ROW_BYTES * copies
    try:
        found = os.statvfs(output.path)
    except OSError:
        return None
    free = found.f_bavail * found.f_frsize
    if free >= least:
        return None
    asked = [row.request.params for row in rows if row.request is not None]
    most = least + sum(params.max_tokens * params.n for params in asked) * TOKEN_BYTES * copies
    return (
        f"{output.path}: the disk has {_size(free)} left, but {len(rows):,} rows take at "
        f"least {_size(least)}, and up to {_size(most)} if all answers reach their "
        "limits; if the disk becomes full, the run stops and can be resumed"
    )


def missing_space(error: OutputError, num_bytes: int, num_rows: int, num_left: int) -> str | None:
    """Return the space needed by the remaining rows, if the disk is full.

    num_bytes, num_rows: contents of the output so far.
    """
    if error.errno not in FULL or not num_rows or not num_left:
        return None
    return f"the remaining rows will take about {_size(num_left * num_bytes // num_rows)}"


def _size(num_bytes: int) -> str:
    if num_bytes < 1024:
        return f"{num_bytes} bytes"
    for unit, scale in (("KiB", 10), ("MiB", 20)):
        if num_bytes < 1024 << scale:
            return f"{num_bytes / (1 << scale):.1f} {unit}"
    return f"{num_bytes / (1 << 30):,.1f} GiB"
