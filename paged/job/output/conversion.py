"""Conversion: the files of an output that is no plain JSONL, made of the journal's rows."""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from pagedrun.paged.files.atomic import remove_leftovers, replace_file
from pagedrun.paged.job.output.formats.csv_rows import column_names, csv_lines
from pagedrun.paged.job.output.formats.output_format import OutputFormat
from pagedrun.paged.job.output.formats.parquet_rows import (
    ColumnTypes,
    column_types,
    parquet_pieces,
)
from pagedrun.paged.job.output.formats.row_columns import OutputColumns
from pagedrun.paged.job.output.formats.value_type import json_text
from pagedrun.paged.job.output.output_file import OutputError, reason_of
from pagedrun.paged.job.output.output_layout import OutputLayout

GZIP = 31  # the window bits of zlib that make it write a gzip file


class Conversion:
    """Makes the files of a layout, each whole or not at all.

    `lines` gives the rows in input order, each a line of JSON; it is called for each pass over
    them. What is in memory does not grow with their number.
    """

    def __init__(
        self, layout: OutputLayout, lines: Callable[[], Iterator[bytes]], num_rows: int
    ) -> None:
        self._layout = layout
        self._columns = layout.columns
        self._lines = lines
        self._num_rows = num_rows
        self._unseen = set(layout.columns.names)

    def write(self) -> frozenset[str]:
        """Write the files; return the columns asked for that no row has.

        Raises `OutputError`; files that are written by then stay.
        """
        make = self._maker()
        lines = self._lines()
        least, rest = divmod(self._num_rows, len(self._layout.files))
        for number, path in enumerate(self._layout.files):
            pieces = make(islice(lines, least + (number < rest)))
            try:
                replace_file(path.resolve(), pieces)
            except OSError as error:
                raise OutputError(
                    f"{path} cannot be written ({reason_of(error)}); the rows are in "
                    f"{self._layout.journal}",
                    error,
                ) from error
        return frozenset(self._unseen if self._num_rows else ())

    def _maker(self) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
        """Return what makes a file's bytes of lines; where it takes a first pass, it is done."""
        match self._layout.format:
            case OutputFormat.PARQUET:
                types = column_types(self._all_rows(), flat=self._columns.flatten)
                return lambda lines: self._parquet(lines, types)
            case OutputFormat.CSV:
                names = self._columns.names or column_names(self._all_rows())
                return lambda lines: self._csv(lines, names)
            case OutputFormat.JSONL_GZ:
                return lambda lines: _packed(self._jsonl(lines))
        return self._jsonl

    def _parquet(self, lines: Iterable[bytes], types: ColumnTypes) -> Iterator[bytes]:
        return parquet_pieces(((self._row(line), len(line)) for line in lines), types)

    def _csv(self, lines: Iterable[bytes], names: Sequence[str]) -> Iterator[bytes]:
        return csv_lines(map(self._row, lines), names)

    def _jsonl(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        if self._columns.takes_rows_as_they_are:
            yield from lines
            return
        for line in lines:
            yield json_text(dict(self._row(line))).encode("utf-8", "replace") + b"\n"

    def _all_rows(self) -> Iterator[OutputColumns]:
        return (self._columns.of(json.loads(line)) for line in self._lines())

    def _row(self, line: bytes) -> OutputColumns:
        row: OutputColumns = json.loads(line)
        if self._unseen:
            self._unseen = self._columns.missing_in(row, self._unseen)
        return self._columns.of(row)


def clear_files(layout: OutputLayout, *, keep: bool) -> None:
    """Remove what killed runs left of the files, and files of an earlier job unless they are to be
    kept; called by who has the journal.

    Nobody shall take an earlier job's answers for those of one that was cut off.
    """
    for path in (Path(layout.output), *layout.files):
        remove_leftovers(path.resolve())
    for path in () if keep else layout.files:
        try:
            path.resolve().unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{path} cannot be replaced ({reason_of(error)})", error) from error


def _packed(lines: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=GZIP)
    for line in lines:
        if piece := packer.compress(line):
            yield piece
    yield packer.flush()
