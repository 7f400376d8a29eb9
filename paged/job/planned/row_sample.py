"""A sample of a file's rows, the same one every time."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.json_line import parse_object
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.reader import open_inputs
from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.inputs.row_source import RowSource
from pagedrun.paged.values.errors import RowError

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class _Sample:
    """A row that may be drawn: its place, its size in the input, and what makes columns of it."""

    index: int
    num_bytes: int
    content: bytes | Columns | None  # a line that is not parsed yet, or None for what is no row

    def columns(self) -> Columns | None:
        """Return the row's columns, None if it is no row."""
        if not isinstance(self.content, bytes):
            return self.content
        try:
            return parse_object(self.content.decode("utf-8").strip())
        except (RowError, UnicodeDecodeError):
            return None


def sample_rows(config: JobConfig) -> list[Columns]:
    """Return the columns of up to `SAMPLE_ROWS` rows and `SAMPLE_BYTES`, in the file's order.

    Every row within the job's limit is as likely to be in it as any other (J. Vitter, "Random
    sampling with a reservoir", 1985); what is no row is left out.
    """
    draw = random.Random(0)
    kept: list[_Sample] = []
    with open_inputs(config.inputs, config.reading) as source:
        for sample in islice(_samples(source), config.limit):
            if len(kept) < SAMPLE_ROWS:
                kept.append(sample)
                continue
            place = draw.randrange(sample.index + 1)
            if place < SAMPLE_ROWS:
                kept[place] = sample
    draw.shuffle(kept)  # so that cutting by bytes favours nobody
    chosen: dict[int, Columns] = {}
    num_bytes = 0
    for sample in kept:
        num_bytes += sample.num_bytes
        if num_bytes > SAMPLE_BYTES and chosen:
            break
        columns = sample.columns()
        if columns is not None:
            chosen[sample.index] = columns
    return [chosen[index] for index in sorted(chosen)]


def _samples(source: RowSource) -> Iterator[_Sample]:
    """Yield the rows; lines of JSON as they are, since of many few will be parsed."""
    if isinstance(source, LineSource) and source.is_json:
        lines = (line.data or b"" for line in source.lines if not line.is_blank)
        for index, data in enumerate(lines):
            yield _Sample(index, len(data), data)
        return
    begin = 0
    for row in source:
        yield _Sample(row.index, source.num_bytes_read - begin, None if row.error else row.columns)
        begin = source.num_bytes_read
