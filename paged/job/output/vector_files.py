"""Vectors of rows in a file of their own, row by row, and the .npy files made of it.

The file beside a journal is a .npy array with a header of fixed size, so that a vector is written
at the place of its row as it is computed, in any order, and a stopped run is resumed. At the end
its header gets the number of rows: a .npy output is that file under its own name. Vectors do not
become Python objects, and memory does not grow with their number.
"""

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pagedrun.paged.files.atomic import PRIVATE_MODE, replace_file, sync_folder
from pagedrun.paged.job.config import ERRORS_SUFFIX, VECTORS_SUFFIX
from pagedrun.paged.job.output.column_types import EMBEDDING, EMBEDDING_SCALE
from pagedrun.paged.job.output.line_digests import line_digest
from pagedrun.paged.job.output.output_file import OutputError, OutputFormat, reason_of
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.job.output.row_columns import VECTOR_DIGEST
from pagedrun.paged.job.output.saved_rows import FinishedRows
from pagedrun.paged.job.output.table_files import VectorColumn
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.pooling import VectorType

Vector = NDArray[np.float32]
_Numbers = tuple[NDArray[Any], NDArray[np.bool_]]
INT8_MOST = 127
MOST_HEADER_BYTES = 1024
COPIED_ROWS = 4096  # at once


class StoredVector:
    """Form of vectors in a file: floats, or for int8 a scale before the numbers.

    size: numbers of a vector.
    """

    def __init__(self, kind: VectorType, size: int) -> None:
        self.kind = kind
        self.size = size
        self._float = np.dtype("<f2" if kind is VectorType.FLOAT16 else "<f4")
        self._scaled = np.dtype([("scale", "<f4"), ("numbers", "i1", (size,))])
        is_int8 = kind is VectorType.INT8
        self.num_bytes = self._scaled.itemsize if is_int8 else self._float.itemsize * size
        # NumPy leaves room in a header for the number of rows to grow.
        self.header_bytes = len(self.header(0))

    def packed(self, vector: Vector) -> bytes:
        """Return the bytes of a vector. Raises `RowError` if it has a number beyond the type's."""
        if self.kind is VectorType.INT8:
            scale = np.float32(np.abs(vector).max(initial=0) / INT8_MOST)
            numbers = np.rint(vector / (scale or np.float32(1)))
            held = np.array((scale, numbers.clip(-INT8_MOST, INT8_MOST)), self._scaled)
            return held.tobytes()
        with np.errstate(over="ignore"):
            stored = vector.astype(self._float)
        if not np.isfinite(stored).all():
            raise RowError(
                "vector_out_of_range",
                f"the vector has a number beyond {self.kind}; pass {option('normalize')} or "
                f"{option('vector_type')} {VectorType.FLOAT32}",
            )
        return stored.tobytes()

    @property
    def failed(self) -> bytes:
        """Bytes of a row without a vector."""
        if self.kind is VectorType.INT8:
            return np.array((np.nan, np.zeros(self.size)), self._scaled).tobytes()
        return np.full(self.size, np.nan, self._float).tobytes()

    def header(self, num_rows: int) -> bytes:
        """Return the header of an array, of `header_bytes` bytes."""
        header = io.BytesIO()
        is_int8 = self.kind is VectorType.INT8
        described = {
            "descr": npy.dtype_to_descr(self._scaled if is_int8 else self._float),
            "fortran_order": False,
            "shape": (num_rows,) if is_int8 else (num_rows, self.size),
        }
        npy.write_array_header_1_0(header, described)
        return header.getvalue()

    @classmethod
    def of_header(cls, kind: VectorType, header: bytes) -> "StoredVector | None":
        """Return the form by the first bytes of a file, None if they are not a header of ours."""
        file = io.BytesIO(header)
        try:
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            size = dtype["numbers"].shape[0] if kind is VectorType.INT8 else shape[1]
        except (ValueError, KeyError, IndexError):
            return None
        found = cls(kind, size)
        return found if header.startswith(found.header(shape[0])) else None

    def columns(
        self, read: Callable[[int, int], bytes]
    ) -> dict[str, Callable[[str], VectorColumn]]:
        """Return the columns of a table by key; read: the bytes of `count` rows from one on."""
        if self.kind is not VectorType.INT8:

            def floats(start: int, count: int) -> _Numbers:
                found = np.frombuffer(read(start, count), self._float).reshape(count, self.size)
                return found, np.isnan(found[:, 0])

            return {EMBEDDING: lambda name: VectorColumn(name, self.kind, self.size, floats)}

        def scales(start: int, count: int) -> _Numbers:
            found = np.frombuffer(read(start, count), self._scaled)["scale"]
            return found, np.isnan(found)

        def numbers(start: int, count: int) -> _Numbers:
            found = np.frombuffer(read(start, count), self._scaled)
            return np.ascontiguousarray(found["numbers"]), np.isnan(found["scale"])

        return {
            EMBEDDING: lambda name: VectorColumn(name, "int8", self.size, numbers),
            EMBEDDING_SCALE: lambda name: VectorColumn(name, "float32", None, scales),
        }


class VectorFile:
    """Vectors of rows at the places of their indices."""

    def __init__(self, layout: OutputLayout, kind: VectorType) -> None:
        self._layout = layout
        self._kind = kind
        self.path = Path(f"{layout.output}{VECTORS_SUFFIX}")
        self._descriptor = -1
        self._form: StoredVector | None = None  # known with the first vector

    def begin(self, finished: FinishedRows, read: Callable[[int, int], bytes]) -> None:
        """Open the file; `finished`: rows of an earlier run, whose vectors must be in it.

        read: returns the bytes of a line by its offset and size. Raises `UsageError` if a vector is
        missing or has changed, `OutputError` if the file cannot be opened.
        """
        last = max((index for index, _, _ in finished.answered()), default=-1)
        try:
            made, found = self._layout.files[0], self.path
            if last >= 0 and self._layout.format is OutputFormat.NPY and not found.exists():
                found = made if made.exists() else found
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if last < 0 else 0)
            self._descriptor = os.open(found, flags, PRIVATE_MODE)
            if last >= 0:
                self._check(finished, read, last)
            if found != self.path:
                os.rename(found, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._error(error) from error

    def _check(self, finished: FinishedRows, read: Callable[[int, int], bytes], last: int) -> None:
        """Raise `UsageError` unless the file has the vectors of rows, up to the `last` one."""
        header = os.pread(self._descriptor, MOST_HEADER_BYTES, 0)
        self._form = StoredVector.of_header(self._kind, header)
        if self._form is None or os.fstat(self._descriptor).st_size < self._place(last + 1):
            raise UsageError(
                f"{option('resume')}: {self.path} does not hold the vectors of the finished rows; "
                f"pass {option('overwrite')} instead of {option('resume')}"
            )
        for number, (index, *span) in enumerate(finished.lines, start=1):
            written = json.loads(read(*span)).get(VECTOR_DIGEST)  # version 0.2 wrote none
            if written is not None and written != _digest(self._read(index, 1)):
                raise UsageError(
                    f"{option('resume')}: {self.path} does not hold the vector that was written "
                    f"for line {number} of {self._layout.journal}; put the file back as it was, or "
                    "remove that line: its row is then computed again"
                )

    def write(self, index: int, vector: Vector) -> str:
        """Write the vector of a row; return the digest of its bytes.

        Raises `RowError` if it has a number beyond the type's, and `OutputError`.
        """
        is_first = self._form is None
        form = self._form = self._form or StoredVector(self._kind, len(vector))
        if is_first:
            self._put(form.header(0), 0)
        packed = form.packed(vector)
        self._put(packed, self._place(index))
        return _digest(packed)

    def _put(self, data: bytes, place: int) -> None:
        try:
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
        """Close the file, whose vectors were synced before; an earlier error has precedence."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def end(self, lines: Callable[[], Iterator[bytes]], num_rows: int) -> list[str]:
        """Complete the file after the last row; return the errors of failed rows as lines.

        The vector of a failed row is NaN. Raises `OutputError`.
        """
        form = self._form = self._form or StoredVector(self._kind, 0)
        errors = []
        for line in lines():
            row = json.loads(line)
            if row["error"] is not None:
                self._put(form.failed, self._place(row["index"]))
                names = ("index", "id", "error")
                errors.append(json.dumps({name: row[name] for name in names}, ensure_ascii=False))
        try:
            os.ftruncate(self._descriptor, self._place(num_rows))
            self._put(form.header(num_rows), 0)
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._error(error) from error
        return errors

    @property
    def columns(self) -> dict[str, Callable[[str], VectorColumn]]:
        """Columns of a table by key, each made under a name."""
        form = self._form
        if form is None or not form.size:  # no row has a vector
            form = StoredVector(self._kind, 1)
            return form.columns(lambda start, count: StoredVector(self._kind, 1).failed * count)
        return form.columns(self._read)

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
        assert self._form is not None, "the file is complete"
        yield self._form.header(count)
        for first in range(start, start + count, COPIED_ROWS):
            yield self._read(first, min(COPIED_ROWS, start + count - first))

    def _read(self, start: int, count: int) -> bytes:
        """Return the bytes of the vectors of consecutive rows."""
        place = self._place(start)
        return os.pread(self._descriptor, self._place(start + count) - place, place)

    def _place(self, index: int) -> int:
        """Return the offset of a row."""
        assert self._form is not None, "a vector was written"
        return self._form.header_bytes + self._form.num_bytes * index

    def _error(self, error: OSError) -> OutputError:
        return OutputError(f"{self.path} cannot be written ({reason_of(error)})", error)


def _digest(packed: bytes) -> str:
    return line_digest(packed).hex()
