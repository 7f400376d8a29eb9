"""Comparison of two outputs of `embed` by the cosines of their vectors.

Vectors are spooled to temporary files, so that memory does not grow with their size; arrays are
mapped.
"""

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.array_types import Float64s, Int64s
from pagedrun.paged.job.output.column_types import EMBEDDING, EMBEDDING_SCALE
from pagedrun.paged.job.output.output_file import OutputFormat
from pagedrun.paged.job.output.saved_rows import SavedRow
from pagedrun.paged.values.errors import UsageError, option

Row = tuple[int, object, NDArray[Any] | None]
"""Index, id (None without one) and vector of a row, None for a failed one."""
_BLOCK = 4096  # rows at once


class VectorFigures(TypedDict):
    """Figures of one output; `failed` rows have no vector, `dimensions` is 0 without any."""

    path: str
    rows: int
    failed: int
    dimensions: int
    torn: bool


class VectorChange(TypedDict):
    """Row whose vectors differ: its index in each output, and the cosine."""

    id: str | int
    a: int
    b: int
    cosine: float


class VectorComparison(TypedDict):
    """Result of `pagedrun diff` for vectors. Rows are `compared` if both outputs have a vector.

    `equal` ones have the same numbers; cosines are null without a compared row. `below` counts
    cosines less than `threshold`, and `lowest` are the first of them, in ascending order.
    `failed_in_a` and `failed_in_b` failed in one output alone, `failed_in_both` in both; `missing`
    rows are in A alone, `added` in B alone.
    """

    a: VectorFigures
    b: VectorFigures
    same: bool
    matched_by: str
    compared: int
    equal: int
    min_cosine: float | None
    mean_cosine: float | None
    threshold: float
    below: int
    failed_in_a: int
    failed_in_b: int
    failed_in_both: int
    missing: int
    added: int
    lowest: list[VectorChange]


def holds_vectors(path: Path) -> bool:
    """Return whether an output has vectors, by its ending or its first row."""
    if _format(path) in (OutputFormat.NPY, OutputFormat.PARQUET):
        return True
    with suppress(OSError, ValueError, UsageError):
        with _opened(path) as file:
            saved = SavedRow.parse(file.readline())
        if saved is not None:
            data = saved.body.get("data")
            is_batch = isinstance(data, list) and "choices" not in saved.body
            return EMBEDDING in saved.fields or is_batch
    return False


def compare_vectors(
    path_a: Path, path_b: Path, *, threshold: float, most_shown: int
) -> VectorComparison:
    """Compare the vectors of two outputs, with details of the `most_shown` lowest cosines.

    Rows are matched by their ids if both outputs have unique ones, else by their index. Raises
    `UsageError` for a file without vectors, and for vectors of different sizes.
    """
    a, b = VectorTable(path_a), VectorTable(path_b)
    if a.size and b.size and a.size != b.size:
        raise UsageError(
            f"vectors of {path_a} have {a.size} numbers and those of {path_b} {b.size}; compare "
            f"outputs of the same {option('dimensions')}"
        )
    by_id = a.by_id is not None and b.by_id is not None
    in_a: dict[Any, int] = a.by_id if by_id and a.by_id is not None else a.by_index
    in_b: dict[Any, int] = b.by_id if by_id and b.by_id is not None else b.by_index
    shared = [key for key in in_a if key in in_b]
    rows_a = np.fromiter((in_a[key] for key in shared), np.int64, len(shared))
    rows_b = np.fromiter((in_b[key] for key in shared), np.int64, len(shared))
    has_a, has_b = a.places[rows_a] >= 0, b.places[rows_b] >= 0
    both = np.flatnonzero(has_a & has_b)
    cosines, num_equal = _cosines(a, b, rows_a[both], rows_b[both])
    below = both[cosines < threshold]
    order = np.argsort(cosines[cosines < threshold], kind="stable")[:most_shown]
    by_place = dict(zip(both.tolist(), cosines.tolist(), strict=True)) if len(order) else {}
    failed_a, failed_b = int((~has_a & has_b).sum()), int((has_a & ~has_b).sum())
    missing, added = len(in_a) - len(shared), len(in_b) - len(shared)
    return {
        "a": a.figures(),
        "b": b.figures(),
        "same": not (len(below) or failed_a or failed_b or missing or added),
        "matched_by": "id" if by_id else "index",
        "compared": len(both),
        "equal": num_equal,
        "min_cosine": float(cosines.min()) if len(both) else None,
        "mean_cosine": float(cosines.mean()) if len(both) else None,
        "threshold": threshold,
        "below": len(below),
        "failed_in_a": failed_a,
        "failed_in_b": failed_b,
        "failed_in_both": int((~has_a & ~has_b).sum()),
        "missing": missing,
        "added": added,
        "lowest": [
            {
                "id": b.id_of(int(rows_b[place])),
                "a": a.indices[rows_a[place]],
                "b": b.indices[rows_b[place]],
                "cosine": by_place[place],
            }
            for place in below[order].tolist()
        ],
    }


class VectorTable:
    """Rows of an output with their vectors.

    `places` are the places of the rows' vectors in `vectors`, -1 for failed rows. `by_id` is None
    without unique ids.
    """

    def __init__(self, path: Path) -> None:
        """Read the whole file once. Raises `UsageError` if it has no vectors."""
        self.path = path
        self.torn = False
        self.indices: list[int] = []
        self.by_index: dict[int, int] = {}
        self.by_id: dict[str, int] | None = {}
        self._ids: list[object] = []
        try:
            if _format(path) is OutputFormat.NPY:
                self._map()
            else:
                self._spool()
        except (OSError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0][:200]
            raise UsageError(f"{path} cannot be read ({reason})") from error

    @property
    def size(self) -> int:
        """Numbers of a vector, 0 without any."""
        return self.vectors.shape[1] if len(self.vectors) else 0

    def id_of(self, row: int) -> str | int:
        """Return the id of a row, else its index."""
        found = self._ids[row] if self._ids else None
        return found if isinstance(found, str | int) else self.indices[row]

    def figures(self) -> VectorFigures:
        """Return the figures of the output."""
        return {
            "path": os.fsencode(self.path).decode("utf-8", "replace"),
            "rows": len(self.indices),
            "failed": int((self.places < 0).sum()),
            "dimensions": self.size,
            "torn": self.torn,
        }

    def _map(self) -> None:
        """Map an array; rows of NaN have failed."""
        self.vectors = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if self.vectors.ndim != 2 or self.vectors.dtype.kind != "f":
            raise UsageError(f"{self.path} is no array of vectors, [rows, dimensions]")
        count = len(self.vectors)
        self.indices = list(range(count))
        self.by_index = dict(zip(self.indices, self.indices, strict=True))
        self.by_id = None
        self.places = np.arange(count)
        for start in range(0, count if self.vectors.shape[1] else 0, _BLOCK):
            failed = np.isnan(self.vectors[start : start + _BLOCK, 0])
            self.places[start : start + _BLOCK][failed] = -1

    def _spool(self) -> None:
        """Copy the vectors of a file to a temporary one."""
        places: list[int] = []
        num_vectors = size = 0
        with tempfile.TemporaryFile() as file:
            for index, row_id, vector in self._rows():
                if index in self.by_index:
                    raise UsageError(f"{self.path} has row {index} twice; it is not of one run")
                self._note(index, row_id)
                places.append(-1 if vector is None else num_vectors)
                if vector is not None:
                    if num_vectors and len(vector) != size:
                        raise UsageError(
                            f"{self.path}: the vector of row {index} has {len(vector)} numbers, "
                            f"others have {size}"
                        )
                    size = len(vector)
                    file.write(vector.astype(np.float32).tobytes())
                    num_vectors += 1
            file.flush()
            self.places = np.array(places, np.int64)
            self.vectors = np.empty((0, 0), np.float32)
            if num_vectors and size:
                self.vectors = np.memmap(file, np.float32, "r", shape=(num_vectors, size))

    def _note(self, index: int, row_id: object) -> None:
        row = len(self.indices)
        self.indices.append(index)
        self._ids.append(row_id)
        self.by_index[index] = row
        key = json.dumps(row_id)
        if row_id is None or self.by_id is None or key in self.by_id:
            self.by_id = None
        else:
            self.by_id[key] = row

    def _rows(self) -> Iterator[Row]:
        if _format(self.path) is OutputFormat.PARQUET:
            yield from self._records()
            return
        with _opened(self.path) as file:
            for number, line in enumerate(file, start=1):
                self.torn = not line.endswith(b"\n")
                if self.torn:
                    return
                saved = SavedRow.parse(line)
                if saved is None or (not saved.has_failed and _vector_of(saved) is None):
                    raise UsageError(
                        f"{self.path}, line {number} is no row with a vector; name two outputs of "
                        "pagedrun embed"
                    )
                row_id = saved.fields.get("custom_id", saved.fields.get("id"))
                yield saved.index, row_id, None if saved.has_failed else _vector_of(saved)

    def _records(self) -> Iterator[Row]:
        """Yield the rows of a Parquet file."""
        from pyarrow import ArrowInvalid, parquet

        try:
            file = parquet.ParquetFile(self.path)
        except ArrowInvalid as error:
            raise ValueError(str(error)) from error
        names = [f"output_{EMBEDDING}", EMBEDDING]
        name = next((each for each in names if each in file.schema_arrow.names), None)
        is_list = name is not None and hasattr(file.schema_arrow.field(name).type, "list_size")
        if name is None or not is_list:
            raise UsageError(
                f"{self.path} has no column {EMBEDDING} of vectors; name an output of pagedrun "
                "embed"
            )
        scale = name.replace(EMBEDDING, EMBEDDING_SCALE)
        others = [each for each in ("id", scale) if each in file.schema_arrow.names]
        index = 0
        for batch in file.iter_batches(_BLOCK, columns=[name, *others]):
            column = batch.column(name)
            size = column.type.list_size
            numbers = column.values.to_numpy(zero_copy_only=False).reshape(-1, size)
            numbers = numbers[column.offset : column.offset + len(batch)]
            has = column.is_valid().to_numpy(zero_copy_only=False)
            ids = batch.column("id").to_pylist() if "id" in others else [None] * len(batch)
            scales = None
            if scale in others:
                scales = batch.column(scale).to_numpy(zero_copy_only=False)
            for row, row_id in enumerate(ids):
                vector = None
                if has[row]:
                    vector = numbers[row] if scales is None else numbers[row] * scales[row]
                yield index, row_id, vector
                index += 1


def _cosines(
    a: VectorTable, b: VectorTable, rows_a: Int64s, rows_b: Int64s
) -> tuple[Float64s, int]:
    """Return the cosines of rows, and the number of rows with the same numbers."""
    found, num_equal = np.empty(len(rows_a)), 0
    for start in range(0, len(rows_a), _BLOCK):
        part = slice(start, start + _BLOCK)
        one = np.asarray(a.vectors[a.places[rows_a[part]]], np.float64)
        other = np.asarray(b.vectors[b.places[rows_b[part]]], np.float64)
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        dots = np.einsum("ij,ij->i", one, other)
        is_equal = (one == other).all(axis=1)
        num_equal += int(is_equal.sum())
        # Two vectors of zeros are equal; one of them has no direction.
        cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
        found[part] = np.where(is_equal, 1.0, cosines.clip(-1.0, 1.0))
    return found, num_equal


def _vector_of(saved: SavedRow) -> NDArray[Any] | None:
    """Return the vector of a row, those of a call one after the other; None if it has none."""
    given = saved.fields.get(EMBEDDING)
    data = saved.body.get("data")
    if given is None and isinstance(data, list):
        given = [number for each in data for number in _numbers(each)]
    try:
        found = np.array(given, np.float32)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == 1 and len(found) and np.isfinite(found).all() else None


def _numbers(item: object) -> list[Any]:
    found = item.get(EMBEDDING) if isinstance(item, dict) else None
    return found if isinstance(found, list) else []


def _format(path: Path) -> OutputFormat:
    return OutputFormat.of(str(path))


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    if _format(path) is OutputFormat.JSONL_GZ:
        return gzip.open(path, "rb")
    return path.open("rb")
