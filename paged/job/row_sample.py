"""A sample of a file's rows, the same one every time."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.json_line import parse_object
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.reader import open_rows
from pagedrun.paged.job.inputs.row_source import RowSource
from pagedrun.paged.values.errors import RowError

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class _Sample:
    """A row: its line, its columns, or None if it is none; and its size in the input."""

    num_bytes: int
    content: bytes | Mapping[str, Any] | None


def sample_rows(config: JobConfig) -> list[Mapping[str, Any]]:
    """Return the columns of up to `SAMPLE_ROWS` rows and `SAMPLE_BYTES`, in the file's order.

    Every row within the job's limit is as likely to be in it as any other (J. Vitter, "Random
    sampling with a reservoir", 1985); what is no row is left out.
    """
    draw = random.Random(0)
    kept: list[tuple[int, _Sample]] = []
    with open_rows(config.input, config.max_line_bytes) as source:
        for index, sample in enumerate(islice(_samples(source), config.limit)):
            if len(kept) < SAMPLE_ROWS:
                kept.append((index, sample))
                continue
            place = draw.randrange(index + 1)
            if place < SAMPLE_ROWS:
                kept[place] = (index, sample)
    draw.shuffle(kept)  # so that cutting by bytes favours nobody
    chosen: list[tuple[int, Mapping[str, Any]]] = []
    num_bytes = 0
    for index, sample in kept:
        num_bytes += sample.num_bytes
        if num_bytes > SAMPLE_BYTES and chosen:
            break
        columns = _columns(sample.content)
        if columns is not None:
            chosen.append((index, columns))
    return [columns for _, columns in sorted(chosen, key=lambda each: each[0])]


def _samples(source: RowSource) -> Iterator[_Sample]:
    """Yield the rows; lines of JSON as they are, since of many few will be parsed."""
    if isinstance(source, LineSource) and source.is_json:
        for line in source.lines:
            if not line.is_blank:
                data = line.data or b""
                yield _Sample(len(data), data)
        return
    begin = 0
    for row in source:
        yield _Sample(source.num_bytes_read - begin, None if row.error else row.columns)
        begin = source.num_bytes_read


def _columns(content: bytes | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if not isinstance(content, bytes):
        return content
    try:
        return parse_object(content.decode("utf-8").strip())
    except (RowError, UnicodeDecodeError):
        return None
