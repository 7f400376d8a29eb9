"""Vectors of rows in a file of their own, row by row, and the .npy and .parquet files made of it.

The file beside a journal is a .npy array with a header of fixed size, so that a vector is written
at the place of its row as it is computed, in any order, and a stopped run is resumed. At the end
its header gets the number of rows: a .npy output is that file under its own name. Vectors do not
become Python objects, and memory does not grow with their number.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pagedrun.paged.files.atomic import PRIVATE_MODE, replace_file, sync_folder
from pagedrun.paged.job.inputs.row import InputFacts
from pagedrun.paged.job.output.column_types import InputType, ScalarType, ValueType
from pagedrun.paged.job.output.output_file import OutputError, OutputFormat, reason_of
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.job.output.row_columns import OutputColumns, RowColumns, RowShaper
from pagedrun.paged.job.output.table_files import (
    VectorColumn,
    column_types,
    csv_lines,
    parquet_pieces,
)
from pagedrun.paged.values.errors import UsageError, option

Vector = NDArray[np.float32]
VECTORS_SUFFIX = ".vectors.npy"
ERRORS_SUFFIX = ".errors.jsonl"
HEADER_BYTES = 128  # NumPy leaves room for the number of rows to grow


class VectorFile:
    """Vectors of rows at the places of their indices, [num_rows, size] float32."""

    def __init__(self, layout: OutputLayout) -> None:
        self._layout = layout
        self.path = Path(f"{layout.output}{VECTORS_SUFFIX}")
        self._descriptor = -1
        self._size: int | None = None

    def begin(self, answered: Iterable[int]) -> None:
        """Open the file; `answered`: rows of an earlier run, whose vectors must be in it.

        Raises `UsageError` if they are not, `OutputError` if it cannot be opened.
        """
        last = max(answered, default=-1)
        try:
            made = self._layout.files[0]
            renamed = self._layout.format is OutputFormat.NPY and made.exists()
            if last >= 0 and renamed and not self.path.exists():
                os.rename(made, self.path)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if last < 0 else 0)
            self._descriptor = os.open(self.path, flags, PRIVATE_MODE)
            if last < 0:
                return
            self._size = _size_of(os.pread(self._descriptor, HEADER_BYTES, 0))
            num_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise self._error(error) from error
        if self._size is None or num_bytes < self._place(last + 1):
            raise UsageError(
                f"{option('resume')}: {self.path} does not hold the vectors of the finished rows; "
                f"pass {option('overwrite')} instead of {option('resume')}"
            )

    def write(self, index: int, vector: Vector) -> None:
        """Write the vector of a row. Raises `OutputError`."""
        try:
            if self._size is None:
                self._size = len(vector)
                os.pwrite(self._descriptor, _header(0, self._size), 0)
            data, place = vector.astype("<f4").tobytes(), self._place(index)
            while data:
                written = os.pwrite(self._descriptor, data, place)
                data, place = data[written:], place + written
        except OSError as error:
            raise self._error(error) from error

    def sync(self) -> None:
        """Wait until the vectors are on disk."""
        if self._descriptor >= 0:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._error(error) from error

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def finish(
        self, lines: Callable[[], Iterator[bytes]], num_rows: int, facts: InputFacts
    ) -> list[str]:
        """Write the output from the vectors and the journal's lines; return warnings.

        The vector of a failed row is NaN. Raises `OutputError`.
        """
        size = self._size or 0
        errors = []
        for line in lines():
            row = json.loads(line)
            if row["error"] is not None:
                if self._size is not None:
                    self.write(row["index"], np.full(size, np.nan, np.float32))
                names = ("index", "id", "error")
                errors.append(json.dumps({name: row[name] for name in names}, ensure_ascii=False))
        target = self._layout.files[0].resolve()
        try:
            os.ftruncate(self._descriptor, HEADER_BYTES + 4 * size * num_rows)
            os.pwrite(self._descriptor, _header(num_rows, size), 0)
            os.fsync(self._descriptor)
            if self._layout.format is OutputFormat.NPY:
                os.replace(self.path, target)
                sync_folder(target.parent)
                self._write_errors(target, errors)
                return []
            replace_file(target, self._parquet(lines, facts))
            if not errors:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._error(error) from error
        return []

    def _write_errors(self, target: Path, errors: list[str]) -> None:
        """Write the errors of failed rows beside an array, or remove those of an earlier run."""
        beside = target.with_name(target.name + ERRORS_SUFFIX)
        if errors:
            replace_file(beside, ["".join(f"{each}\n" for each in errors).encode()])
        else:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def _parquet(self, lines: Callable[[], Iterator[bytes]], facts: InputFacts) -> Iterator[bytes]:
        """Yield the bytes of a table: columns of the input, `embedding`, and `error`."""
        shaper = TableShaper.of_lines(lines, facts, ())
        name = "output_embedding" if "embedding" in shaper.names else "embedding"
        return shaper.parquet(lines, VectorColumn(name, self._size or 1, self._read))

    def _read(self, start: int, count: int) -> NDArray[np.float32]:
        """Return vectors of consecutive rows, [count, size]."""
        size = self._size
        if size is None:  # no row has a vector
            return np.full((count, 1), np.nan, np.float32)
        data = os.pread(self._descriptor, 4 * size * count, self._place(start))
        return np.frombuffer(data, "<f4").reshape(count, size)

    def _place(self, index: int) -> int:
        return HEADER_BYTES + 4 * (self._size or 0) * index

    def _error(self, error: OSError) -> OutputError:
        return OutputError(f"{self.path} cannot be written ({reason_of(error)})", error)


class TableShaper(RowShaper):
    """Columns of tables: those of the input, the keys of a result, and the error as text.

    A key of the input's name begins with `output_`.
    """

    def __init__(self, given: Iterable[str], facts: InputFacts, results: Iterable[str]) -> None:
        super().__init__(RowColumns(is_table=True), (), (), facts.schema)
        self._inputs = tuple(given)
        self._results = {
            f"output_{each}" if each in self._inputs else each: each for each in (*results, "error")
        }

    @classmethod
    def of_lines(
        cls, lines: Callable[[], Iterator[bytes]], facts: InputFacts, results: Iterable[str]
    ) -> "TableShaper":
        """Return the shaper of a journal; columns are those of all rows."""
        given = dict.fromkeys(facts.columns or ())
        if facts.columns is None:
            for line in lines():
                given |= dict.fromkeys(json.loads(line).get("input") or ())
        return cls(given, facts, results)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns in order."""
        return (*self._inputs, *self._results)

    def of(self, written: OutputColumns) -> OutputColumns:
        """Return the columns of a row; missing ones are null."""
        given = written.get("input")
        inputs = given if isinstance(given, dict) else {}
        found = {name: inputs.get(name) for name in self._inputs}
        for name, key in self._results.items():
            value = written.get(key)
            if key == "error" and isinstance(value, dict):
                value = f"{value['code']}: {value['message']}"
            found[name] = value
        return found

    def type_of(self, name: str) -> ValueType | InputType | None:
        """Return the type of a column of the input in its table, None to infer it."""
        if self._results.get(name) == "error":
            return ScalarType.TEXT
        return self._kept(name) if name in self._inputs else None

    def parquet(
        self, lines: Callable[[], Iterator[bytes]], vectors: VectorColumn | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of a Parquet file of a journal's lines."""
        types = column_types((self.of(json.loads(line)) for line in lines()), self)
        rows = ((self.of(json.loads(line)), len(line)) for line in lines())
        return parquet_pieces(rows, types, vectors=vectors)

    def write(self, layout: OutputLayout, lines: Callable[[], Iterator[bytes]]) -> None:
        """Write the file of a layout, Parquet or CSV. Raises `OutputError`."""
        target = layout.files[0].resolve()
        if layout.format is OutputFormat.PARQUET:
            pieces = self.parquet(lines)
        else:
            pieces = csv_lines((self.of(json.loads(line)) for line in lines()), self.names)
        try:
            replace_file(target, pieces)
        except OSError as error:
            raise OutputError(
                f"{target} cannot be written ({reason_of(error)}); the rows are in "
                f"{layout.journal}",
                error,
            ) from error


def _header(num_rows: int, size: int) -> bytes:
    """Return the header of an array, of `HEADER_BYTES` bytes."""
    header = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, size)}
    npy.write_array_header_1_0(header, described)
    return header.getvalue()


def _size_of(header: bytes) -> int | None:
    """Return the size of a vector by a header of ours, None for another one."""
    file = io.BytesIO(header)
    try:
        npy.read_magic(file)
        shape, _, _ = npy.read_array_header_1_0(file)
    except ValueError:
        return None
    return shape[1] if len(shape) == 2 and header == _header(*shape) else None
