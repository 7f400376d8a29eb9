"""The rows of an output of any kind as lines: whole ones of JSONL, only the names of others."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from pagedrun.paged.job.inputs.row import default_id
from pagedrun.paged.job.output.formats.output_format import OutputFormat
from pagedrun.paged.job.output.saved_row import ID_KEYS
from pagedrun.paged.values.errors import UsageError

MAX_LINE_BYTES = 2**28


def saved_lines(output: Path) -> Iterator[bytes]:
    """Yield a line for each row of an output; of Parquet and CSV, with its index and ids.

    Raises `OSError` if it cannot be read, `UsageError` if it is damaged.
    """
    name = output.name.lower()
    try:
        if name.endswith(OutputFormat.PARQUET):
            yield from _named(output, _parquet_records(output))
        elif name.endswith(OutputFormat.CSV):
            csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
            with output.open(encoding="utf-8", newline="") as text:
                yield from _named(output, csv.DictReader(text))
        elif name.endswith(OutputFormat.JSONL_GZ):
            with gzip.open(output, "rb") as packed:
                yield from _lines(packed)
        else:
            with output.open("rb") as file:
                yield from _lines(file)
    except (csv.Error, EOFError, ValueError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{output} cannot be read ({error}); is it damaged?") from error


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES):
        yield line


def _parquet_records(output: Path) -> Iterator[Mapping[str, object]]:
    from pyarrow import parquet

    with parquet.ParquetFile(output) as file:
        wanted = [name for name in ID_KEYS if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=wanted):
            yield from batch.to_pylist() if wanted else [{}] * batch.num_rows


def _named(output: Path, records: Iterable[Mapping[str, object]]) -> Iterator[bytes]:
    """Yield each record's place, which is the row's index, and its ids.

    A table has the columns of its input, where `index` may be anything; its rows are in input
    order.
    """
    for index, record in enumerate(records):
        named = {name: record[name] for name in ID_KEYS if record.get(name) not in (None, "")}
        row = {"index": index, **(named or {"id": default_id(index)}), "error": None}
        yield json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
