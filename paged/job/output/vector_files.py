"""Vectors of rows in a file of their own, row by row, and the .npy files made of it.

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
from pagedrun.paged.job.output.output_file import OutputError, OutputFormat, reason_of
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.job.output.table_files import VectorColumn
from pagedrun.paged.values.errors import UsageError, option

Vector = NDArray[np.float32]
VECTORS_SUFFIX = ".vectors.npy"
ERRORS_SUFFIX = ".errors.jsonl"
HEADER_BYTES = 128  # NumPy leaves room for the number of rows to grow
COPIED_ROWS = 4096  # at once


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

    def end(self, lines: Callable[[], Iterator[bytes]], num_rows: int) -> list[str]:
        """Complete the file after the last row; return the errors of failed rows as lines.

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
        try:
            os.ftruncate(self._descriptor, HEADER_BYTES + 4 * size * num_rows)
            os.pwrite(self._descriptor, _header(num_rows, size), 0)
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._error(error) from error
        return errors

    def column(self, name: str) -> VectorColumn:
        """Return the vectors as a column of a table."""
        return VectorColumn(name, self._size or 1, self._read)

    def write_arrays(self, num_rows: int, errors: list[str]) -> None:
        """Make the output arrays of the complete file, and a file of errors beside them.

        One array is the file itself under its own name, shards are copies. Raises `OutputError`.
        """
        try:
            if len(self._layout.files) == 1:
                target = self._layout.files[0].resolve()
                os.replace(self.path, target)
                sync_folder(target.parent)
            else:
                for path, start, count in self._layout.parts(num_rows):
                    replace_file(path.resolve(), self._array(start, count))
                self.remove()
            beside = Path(self._layout.output + ERRORS_SUFFIX).resolve()
            if errors:
                replace_file(beside, ["".join(f"{each}\n" for each in errors).encode()])
            else:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
        except OSError as error:
            raise self._error(error) from error

    def remove(self) -> None:
        """Remove the file: its vectors are in the output."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _array(self, start: int, count: int) -> Iterator[bytes]:
        """Yield the bytes of an array of consecutive rows."""
        yield _header(count, self._size or 0)
        for first in range(start, start + count if self._size else start, COPIED_ROWS):
            yield self._read(first, min(COPIED_ROWS, start + count - first)).tobytes()

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
