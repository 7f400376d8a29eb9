"""Rows of Arrow tables: Parquet files and Hugging Face datasets.

Prompts are made of their values as JSON; tables of outputs get the values themselves, which a
`KeepTable` receives. These files store bytes by column, so the digest of a row is that of its
columns as a line of JSON.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from pagedrun.paged.job.inputs.arrow_values import json_records
from pagedrun.paged.job.inputs.byte_streams import CountedStream, reason_of
from pagedrun.paged.job.inputs.row import (
    RECORD,
    Columns,
    InputDigest,
    InputFacts,
    Record,
    Row,
    at_line,
    default_id,
    refuse_empty,
    with_record,
)
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.json_value import JSONValue

KeepTable = Callable[[Any], None]
"""Receives each table of Arrow as its rows are read, in their order."""

MAGIC = b"PAR1"  # first and last
MAX_FOOTER_BYTES = 2**26  # of the schema, which is read before any limit applies


class TableSource:
    """Rows of Arrow tables, a few at a time; `name` is used in messages, `keep` gets the tables."""

    def __init__(
        self, tables: Iterable[Any], name: str, max_row_bytes: int, keep: KeepTable | None = None
    ) -> None:
        self._name = name
        self._rows = ArrowRows(tables, max_row_bytes, keep)
        self._iterator = iter(self._rows)

    @property
    def facts(self) -> InputFacts:
        """Columns and types of the table."""
        return self._rows.facts

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the rows so far, as JSON."""
        return self._rows.num_bytes

    def __iter__(self) -> Iterator[Row]:
        is_empty = True
        for row in self._iterator:
            is_empty = False
            yield row
        if is_empty:
            raise refuse_empty(self._name)


class ParquetSource(TableSource):
    """Rows of the Parquet file `file`, a few at a time; implements `RowSource`.

    Raises `UsageError` if the file is no Parquet or is damaged, names a column twice, or pyarrow is
    missing.
    """

    def __init__(
        self, file: BinaryIO, name: str, max_row_bytes: int, keep: KeepTable | None = None
    ) -> None:
        self._file = file
        super().__init__(self._batches(), name, max_row_bytes, keep)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the whole file: its rows have no bytes to count."""
        offset = self._file.tell()
        self._file.seek(0)
        counted = CountedStream(self._file)
        counted.drain()
        self._file.seek(offset)
        return InputDigest(counted.num_bytes, counted.sha256, whole=True)

    def drain(self) -> bool:
        """Return true: the digest is always that of the whole file."""
        return True

    def _batches(self) -> Iterator[Any]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise UsageError(
                f"{self._name} needs the package pyarrow: pip install datasets, which brings it"
            ) from error
        self._check_ends()
        num_rows = 0
        try:
            # Not a context manager: that would close the file, which the caller owns.
            opened = parquet.ParquetFile(self._file, pre_buffer=False)
            names = opened.schema_arrow.names
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise UsageError(f"{self._name}: the column {repeated[0]!r} occurs twice")
            for batch in opened.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                yield batch
                num_rows += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise UsageError(
                f"{self._name}: cannot be read after record {num_rows} ({reason}); is the file "
                "damaged?"
            ) from error

    def _check_ends(self) -> None:
        """Refuse files without Parquet's markers, or with too much metadata."""
        size = self._file.seek(0, 2)
        self._file.seek(max(0, size - 8))
        end = self._file.read()
        self._file.seek(0)
        if size < 12 or self._file.read(4) != MAGIC or end[4:] != MAGIC:
            raise UsageError(
                f"{self._name} is not a complete Parquet file: it does not begin and end with PAR1"
            )
        if int.from_bytes(end[:4], "little") > MAX_FOOTER_BYTES:
            raise UsageError(f"{self._name}: the footer is longer than {MAX_FOOTER_BYTES} bytes")


SAVED_FILES = ("state.json", "dataset_dict.json")  # one of them is in folders of save_to_disk
_OLDEST = 4  # older releases run Python code that a dataset brings along


class DatasetSource(TableSource):
    """Rows of one split, a few at a time; implements `RowSource`.

    Columns have their stored form: images and sounds are not decoded. `can_drain`: the remaining
    rows can be read without a download.
    """

    def __init__(
        self,
        dataset: Any,
        name: str,
        max_row_bytes: int,
        keep: KeepTable | None = None,
        *,
        can_drain: bool,
    ) -> None:
        self._dataset = dataset
        self._can_drain = can_drain
        super().__init__(self._tables(), name, max_row_bytes, keep)

    @classmethod
    def from_folder(
        cls, folder: str, max_row_bytes: int, keep: KeepTable | None = None
    ) -> "DatasetSource":
        """Open a folder of `save_to_disk`; `UsageError` if it holds several splits."""
        datasets = _library(folder)
        try:
            found = datasets.load_from_disk(folder)
        except Exception as error:  # the library raises various errors
            raise UsageError(f"{folder}: cannot be read ({reason_of(error)})") from error
        if not isinstance(found, datasets.Dataset):
            names = list(found)
            if len(names) != 1:
                raise UsageError(
                    f"{folder} has the splits {_listed(names)}; name the folder of one, such as "
                    f"{folder.rstrip('/')}/{names[0] if names else 'train'}"
                )
            found = found[names[0]]
        return cls(found, folder, max_row_bytes, keep, can_drain=True)

    @classmethod
    def from_hub(
        cls, text: str, max_row_bytes: int, keep: KeepTable | None = None
    ) -> "DatasetSource":
        """Open the dataset named by `text`, streaming; the cache suffices without a network.

        Raises `UsageError` if it is unavailable or has no such split.
        """
        asked = HubName.parse(text)
        datasets = _library(text)
        try:
            splits = datasets.load_dataset(asked.name, asked.config, streaming=True)
        except Exception as error:  # the library raises various errors
            raise UsageError(f"{text}: cannot be opened ({reason_of(error)})") from error
        names = list(splits)
        split = asked.split or (names[0] if len(names) == 1 else None)
        if split not in names:
            what = "name one" if split is None else f"there is no split {split!r}"
            raise UsageError(f"{text}: {what}; the splits are {_listed(names)}")
        return cls(splits[split], text, max_row_bytes, keep, can_drain=False)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return the digest of the rows so far, and the library's fingerprint of the dataset."""
        fingerprint = getattr(self._dataset, "_fingerprint", None)
        return InputDigest(self._rows.num_bytes, self._rows.sha256, whole, fingerprint)

    def drain(self) -> bool:
        """Read the remaining rows, if they are on this machine."""
        if self._can_drain:
            self._rows.keep = None
            for _ in self._iterator:
                pass
        return self._can_drain

    def _tables(self) -> Iterator[Any]:
        num_rows = 0
        try:
            for table in self._dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
                yield table
                num_rows += table.num_rows
        except Exception as error:  # of the network, of a cached file, of any format
            raise UsageError(
                f"{self._name}: cannot be read after record {num_rows} ({reason_of(error)})"
            ) from error


def _library(name: str) -> Any:
    """Import and return the module `datasets`, which takes a second."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{name} needs the package datasets: pip install datasets") from error
    if int(datasets.__version__.partition(".")[0]) < _OLDEST:
        raise UsageError(
            f"{name} needs datasets {_OLDEST}.0 or later, {datasets.__version__} is installed: "
            f"pip install -U datasets"
        )
    datasets.disable_progress_bars()  # the command has its own, on the same stream
    return datasets


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


HUB_PREFIX = "hf:"
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubName:
    """Dataset by `name`, configuration and split; None for the only one."""

    name: str
    config: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Parse `text`; `UsageError` for another form."""
        rest, colon, split = text.removeprefix(HUB_PREFIX).partition(":")
        name, at, config = rest.partition("@")
        if not name or (at and not config) or (colon and not split):
            raise UsageError(f"{text}: write hf:NAME, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT")
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{text}: {name!r} is not the name of a dataset; write hf:NAME or hf:ORG/NAME, "
                "each of letters, digits, '-', '_' and '.'"
            )
        if "[" in split or "+" in split:
            raise UsageError(
                f"{text}: only whole splits are read; {option('limit')} limits the number of rows"
            )
        return cls(name, config or None, split or None)

    @property
    def stem(self) -> str:
        """Default name of outputs: the last part of each name, joined by dashes."""
        parts = (self.name, self.config, self.split)
        words = [part.rstrip("/").rpartition("/")[2] for part in parts if part]
        return "-".join(word for word in words if word) or "dataset"


BATCH_ROWS = 128  # held as Python objects at once


class ArrowRows:
    """Iterates over the rows of `tables`; counts and hashes them as JSON.

    Their bytes in the file are stored by column: a row's digest, and `num_bytes` and `sha256` of
    all so far, are those of its columns as one line of JSON. `keep` gets each table; None for
    nothing.
    """

    def __init__(
        self, tables: Iterable[Any], max_row_bytes: int, keep: KeepTable | None = None
    ) -> None:
        self._tables = tables
        self._max_row_bytes = max_row_bytes
        self._sha256 = hashlib.sha256()
        self.keep = keep
        self.num_bytes = 0
        self.facts = InputFacts()

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of the rows so far, each with a newline."""
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[Row]:
        index = 0
        for table in self._tables:
            if self.facts.schema is None:
                names = tuple(table.schema.names)
                self.facts.columns, self.facts.schema = names, table.schema
            if self.keep is not None:
                self.keep(table)
            for record in json_records(table):
                yield self._row(index, record)
                index += 1

    def _row(self, index: int, record: Record) -> Row:
        data = _line(record.given)
        digest = hashlib.sha256(data).digest()
        self.num_bytes += len(data) + 1
        self._sha256.update(data + b"\n")
        row = Row(index, index + 1, None, digest, default_id(index), unit=RECORD)
        row = with_record(row, lambda: record)
        return row if len(data) <= self._max_row_bytes else self._too_long(row)

    def _too_long(self, row: Row) -> Row:
        """Return a row with an error, and those of its columns that are short."""
        most = self._max_row_bytes // len(row.given)
        kept = {name: value for name, value in row.given.items() if len(_line(value)) < most}
        row = replace(row, written=None, columns=kept, unreadable={})
        error = RowError("line_too_long", f"the record is longer than {self._max_row_bytes} bytes")
        return replace(row, error=at_line(error, row.line))


def _line(value: JSONValue | Columns) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
