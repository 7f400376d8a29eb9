"""Row indices by index or id, looked up in an output of any format."""

import csv
import gzip
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from pagedrun.paged.job.inputs.row import default_id
from pagedrun.paged.job.output.output_file import OutputFormat
from pagedrun.paged.job.output.saved_rows import ID_KEYS, SavedRow
from pagedrun.paged.values.errors import UsageError, option

ID_PREFIX = "id:"
MAX_DIGITS = 10


def row_index(named: str) -> int | None:
    """Return the index in `named`, None for an id: not a number, or after `id:`."""
    if named.isdecimal() and named.isascii() and len(named) <= MAX_DIGITS:
        return int(named)
    return None


def find_rows(names: Sequence[str], output: Path | None) -> dict[str, int]:
    """Return each name's row index. The output is streamed once if a name is an id.

    Raises `UsageError` for an id that is not in it.
    """
    found = {name: index for name in names if (index := row_index(name)) is not None}
    missing = {_id_of(name): name for name in names if name not in found}
    if not missing:
        return found
    if output is None:
        name = next(iter(missing.values()))
        raise UsageError(
            f"{option('row')} {name}: ids are looked up in the output, which does not exist; "
            "name the row by its index, counted from 0"
        )
    try:
        for row in _rows(output, missing):
            for row_id in missing.keys() & row.ids:
                found[missing.pop(row_id)] = row.index
            if not missing:
                break
    except OSError as error:
        raise UsageError(f"{output} cannot be read ({error.strerror})") from error
    if missing:
        name = next(iter(missing.values()))
        raise UsageError(
            f"{option('row')} {name}: no row of {output} has this id; a whole number names a row "
            "by its index, counted from 0"
        )
    return found


def _id_of(name: str) -> str:
    return name.removeprefix(ID_PREFIX)


def _as_written(row_id: str) -> bytes:
    """Return the id in its written form, a string or a number."""
    return json.dumps(row_id, ensure_ascii=False).encode("utf-8", "replace").strip(b'"')


MAX_LINE_BYTES = 2**28


def _rows(output: Path, ids: Collection[str]) -> Iterator[SavedRow]:
    """Yield the rows of an output; of JSONL those with one of the ids in their line.

    Raises `OSError` if it cannot be read, `UsageError` if it is damaged.
    """
    name = output.name.lower()
    try:
        if name.endswith(OutputFormat.PARQUET):
            yield from _rows_of_table(_parquet_records(output))
        elif name.endswith(OutputFormat.CSV):
            csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
            with output.open(encoding="utf-8", newline="") as text:
                yield from _rows_of_table(csv.DictReader(text))
        elif name.endswith(OutputFormat.JSONL_GZ):
            with gzip.open(output, "rb") as packed:
                yield from _rows_of_lines(packed, ids)
        else:
            with output.open("rb") as file:
                yield from _rows_of_lines(file, ids)
    except (csv.Error, EOFError, ValueError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{output} cannot be read ({error}); is it damaged?") from error


def _rows_of_lines(file: IO[bytes] | gzip.GzipFile, ids: Collection[str]) -> Iterator[SavedRow]:
    while line := file.readline(MAX_LINE_BYTES):
        # Parsing a line costs far more than a search for a few bytes.
        if any(_as_written(row_id) in line for row_id in ids):
            row = SavedRow.parse(line)
            if row is not None:
                yield row


def _parquet_records(output: Path) -> Iterator[Mapping[str, object]]:
    from pyarrow import parquet

    with parquet.ParquetFile(output) as file:
        wanted = [name for name in ID_KEYS if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=wanted):
            yield from batch.to_pylist() if wanted else [{}] * batch.num_rows


def _rows_of_table(records: Iterable[Mapping[str, object]]) -> Iterator[SavedRow]:
    """Yield a row for each record; its index is its position.

    A table has the columns of its input, where `index` may be anything; its rows are in input
    order.
    """
    for index, record in enumerate(records):
        named = [record[name] for name in ID_KEYS if record.get(name) not in (None, "")]
        ids = tuple(str(each) for each in named if isinstance(each, str | int))
        yield SavedRow(index, ids if named else (default_id(index),), has_failed=False)
