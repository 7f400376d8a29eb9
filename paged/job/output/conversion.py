"""Conversion: the files of an output that is no plain JSONL, made of the journal's rows."""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pagedrun.paged.files.atomic import remove_leftovers, replace_file
from pagedrun.paged.job.inputs.row_source import InputFacts
from pagedrun.paged.job.output.formats.csv_rows import column_names, csv_lines
from pagedrun.paged.job.output.formats.output_format import OutputFormat
from pagedrun.paged.job.output.formats.parquet_rows import (
    ColumnTypes,
    column_types,
    parquet_pieces,
)
from pagedrun.paged.job.output.formats.row_parts import OutputColumns
from pagedrun.paged.job.output.formats.row_shaper import RowShaper, json_keys_of
from pagedrun.paged.job.output.output_file import OutputError, reason_of
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.values.errors import option

PANDAS = b"pandas"
GZIP = 31  # the window bits of zlib that make it write a gzip file


class Conversion:
    """Makes the files of a layout, each whole or not at all.

    `lines` gives the rows in input order, each a line of JSON; it is called for each pass over
    them. What is in memory does not grow with their number. `facts` are those of the input, with
    its columns.
    """

    def __init__(
        self,
        layout: OutputLayout,
        lines: Callable[[], Iterator[bytes]],
        num_rows: int,
        facts: InputFacts,
    ) -> None:
        self._layout = layout
        self._columns = layout.columns
        self._lines = lines
        self._num_rows = num_rows
        self._facts = facts
        self._json_keys: list[str] = []
        self._warnings: list[str] = []

    def write(self) -> list[str]:
        """Write the files; return what to tell of the columns that were asked.

        Raises `OutputError`; files that are written by then stay.
        """
        if self._columns.explodes:
            self._json_keys, has_more = json_keys_of(map(json.loads, self._lines()))
            if has_more:
                self._warnings.append(
                    f"{option('explode_json')}: answers have more than {len(self._json_keys):,} "
                    "keys; those after them are in the text of the answer only"
                )
        try:
            shaper = self._write_files()
        except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
            if self._facts.schema is None:
                raise
            # Rows are not to be lost for a type, such as 8-bit categories of two files together.
            self._facts = replace(self._facts, schema=None)
            reason = str(error).splitlines()[0][:200]
            self._warnings.append(
                "columns of the input get the types of their values instead of the input's "
                f"types ({reason})"
            )
            shaper = self._write_files()
        return [*self._warnings, *(shaper.warnings() if self._num_rows else ())]

    def _write_files(self) -> RowShaper:
        """Write all files; return what has made columns of their rows."""
        shaper = self._shaper()
        make = self._maker(shaper)
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
        return shaper

    def _shaper(self) -> RowShaper:
        facts = self._facts
        return RowShaper(self._columns, facts.columns or (), self._json_keys, facts.schema)

    def _maker(self, shaper: RowShaper) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
        """Return what makes a file's bytes of lines; where it takes a first pass, it is done."""
        match self._layout.format:
            case OutputFormat.PARQUET:
                types = column_types(self._all_rows(), shaper)
                return lambda lines: self._parquet(lines, types, shaper)
            case OutputFormat.CSV:
                names = shaper.names or column_names(self._all_rows())
                return lambda lines: csv_lines(
                    (shaper.of(json.loads(line)) for line in lines), names
                )
            case OutputFormat.JSONL_GZ:
                return lambda lines: _packed(map(shaper.line, lines))
        return lambda lines: map(shaper.line, lines)

    def _parquet(
        self, lines: Iterable[bytes], types: ColumnTypes, shaper: RowShaper
    ) -> Iterator[bytes]:
        rows = ((shaper.of(json.loads(line)), len(line)) for line in lines)
        return parquet_pieces(rows, types, self._metadata())

    def _metadata(self) -> dict[bytes, bytes] | None:
        """Return what pandas has said of the columns, such as which of them are its index."""
        found = getattr(self._facts.schema, "metadata", None) or {}
        is_whole_table = self._columns.begins_with_input
        return {PANDAS: found[PANDAS]} if is_whole_table and PANDAS in found else None

    def _all_rows(self) -> Iterator[OutputColumns]:
        shaper = self._shaper()  # one of its own, which counts nothing twice
        return (shaper.of(json.loads(line)) for line in self._lines())


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
