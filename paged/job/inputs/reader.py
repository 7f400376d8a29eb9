"""Opening of inputs: selects the row source by name and by the `Reading` options."""

import hashlib
import io
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, cast

from pagedrun.paged.job.inputs.array_source import ArraySource
from pagedrun.paged.job.inputs.arrow_source import (
    HUB_PREFIX,
    SAVED_FILES,
    DatasetSource,
    HubName,
    KeepTable,
    ParquetSource,
)
from pagedrun.paged.job.inputs.byte_streams import (
    COMPRESSIONS,
    CountedStream,
    DecompressedStream,
    ReadCancellation,
    is_remote,
    open_remote,
)
from pagedrun.paged.job.inputs.csv_source import CsvSource
from pagedrun.paged.job.inputs.line_source import LineSource, prompt_line
from pagedrun.paged.job.inputs.row import (
    Columns,
    EmptyInput,
    InputDigest,
    InputFacts,
    Row,
    RowSource,
    default_id,
    id_column,
    refuse_empty,
)
from pagedrun.paged.job.inputs.text_encoding import (
    TranscodedStream,
    encoding_note,
    is_utf8,
    marked_encoding,
)
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.rules import Rule

STDIN = "-"
TEXT_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt")
PARQUET = ".parquet"
PIECE_BYTES = 1 << 16  # of a file, read at once; a CSV delimiter is detected in the first one


class InputFormat(StrEnum):
    """Format of input files; `auto` selects it by the file's ending."""

    AUTO = "auto"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    TSV = "tsv"
    TXT = "txt"
    PARQUET = "parquet"


_WITH_CELLS = (InputFormat.CSV, InputFormat.TSV)

DEFAULT_MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Reading:
    """Options of input files: records of at most `max_line_bytes`, `format`, the CSV `delimiter`,
    None to detect it, and the `encoding` of texts, None for UTF-8 or the one of a byte order mark.
    """

    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    format: InputFormat = InputFormat.AUTO
    delimiter: str | None = None
    encoding: str | None = None

    def format_of(self, name: str) -> InputFormat | None:
        """Return the format of the file `name`, None for an unknown ending."""
        if self.format is not InputFormat.AUTO:
            return self.format
        path = Path(name)
        ending = (
            path if path.suffix.lower() not in COMPRESSIONS else Path(path.stem)
        ).suffix.lower()
        known = {f".{each}": each for each in InputFormat if each is not InputFormat.AUTO}
        return known.get(ending)

    def delimiter_of(self, format: InputFormat) -> str | None:
        """Return the delimiter of cells in this format, None to detect it."""
        if self.delimiter is None:
            return TAB if format is InputFormat.TSV else None
        return _NAMED_DELIMITERS.get(self.delimiter, self.delimiter)


BY_NAME = Reading()


@contextmanager
def open_rows(
    name: str,
    reading: Reading = BY_NAME,
    stop: ReadCancellation | None = None,
    keep: KeepTable | None = None,
) -> Iterator[RowSource]:
    """Open the input `name` and yield its rows; `-` is standard input.

    Pipes and devices have no meaningful name and are taken as JSONL, unless `reading` names another
    format. `stop` cancels waiting for a pipe. `keep` gets the tables of Arrow inputs.

    Raises `UsageError` if there is no such input, it cannot be read, or its format is unknown.
    """
    stop = stop or ReadCancellation()
    if is_remote(name):
        with open_remote(name) as remote:
            yield _file_source(_peekable(remote), name, reading, keep)
        return
    if name == STDIN:
        yield _pipe_source(stop.stream(sys.stdin.buffer), name, reading)
        return
    if name.startswith(HUB_PREFIX):
        _refuse_reading(name, reading)
        yield DatasetSource.from_hub(name, reading.max_line_bytes, keep)
        return
    mode = _mode(name)
    if stat.S_ISDIR(mode):
        if not is_saved_dataset(name):
            raise UsageError(
                f"{name} is a folder that was not written by save_to_disk; {_what_is()}"
            )
        _refuse_reading(name, reading)
        yield DatasetSource.from_folder(name, reading.max_line_bytes, keep)
        return
    with _open(name) as file:
        if stat.S_ISREG(mode):
            yield _file_source(file, name, reading, keep)
        else:
            yield _pipe_source(stop.stream(file), name, reading)


@contextmanager
def open_inputs(
    names: Sequence[str],
    reading: Reading = BY_NAME,
    stop: ReadCancellation | None = None,
    keep: KeepTable | None = None,
) -> Iterator[RowSource]:
    """Open one input or several, and yield the rows of all; see `open_rows` and `SeveralSource`.

    Raises `UsageError` for any one that is missing or of an unknown kind.
    """
    if len(names) == 1:
        with open_rows(names[0], reading, stop, keep) as source:
            yield source
        return
    for name in names:
        _check(name, reading)
    several = SeveralSource(names, lambda name: open_rows(name, reading, stop, keep))
    try:
        yield several
    finally:
        several.close()


def inputs_stem(names: Sequence[str]) -> str:
    """Return the name of the default output of these inputs: the first, and the number of
    others.
    """
    stem = input_stem(names[0])
    return stem if len(names) == 1 else f"{stem}+{len(names) - 1}"


def shown_inputs(names: Sequence[str]) -> str:
    """Return the name of the inputs in messages."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def input_stem(name: str) -> str:
    """Return the name of the default output."""
    if name == STDIN:
        return "stdin"
    if name.startswith(HUB_PREFIX) and not is_remote(name):
        return HubName.parse(name).stem
    path = Path(name)
    if path.is_dir():
        return path.resolve().name
    return Path(path.stem).stem if path.suffix.lower() in COMPRESSIONS else path.stem


def is_repeatable(*names: str) -> bool:
    """Return true if the inputs can be read a second time without a download."""
    return all(name != STDIN and (Path(name).is_file() or Path(name).is_dir()) for name in names)


def file_stamp(name: str) -> tuple[int, int] | None:
    """Return size and time of an input file, which change with it; None for any other input."""
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def is_saved_dataset(folder: str) -> bool:
    """Return true if a folder was written by `save_to_disk`."""
    return any(Path(folder, saved).is_file() for saved in SAVED_FILES)


def _check(name: str, reading: Reading) -> None:
    """Refuse one of several inputs before any is read: opening it may be hours away."""
    if name.startswith(HUB_PREFIX) and not is_remote(name):
        HubName.parse(name)
    elif is_remote(name) or stat.S_ISREG(_mode(name)):
        _format_of(name, reading)


def _format_of(name: str, reading: Reading) -> InputFormat:
    """Return the format of a file; `UsageError` if it is unknown, or the options contradict it."""
    found, packing = reading.format_of(name), compression_of(name)
    if found is None or (found is InputFormat.PARQUET and packing):
        raise UsageError(
            f"{name} has an unknown ending; {_what_is()}; {option('input_format')} sets the "
            "format of a file with another ending",
            field="input_format",
        )
    if reading.delimiter is not None and found not in _WITH_CELLS:
        raise UsageError(
            f"{option('delimiter')} applies to CSV files, but {name} is read as {found}; "
            f"leave it out, or pass {option('input_format')} csv"
        )
    if reading.encoding is not None and found is InputFormat.PARQUET:
        raise UsageError(
            f"{option('encoding')} applies to texts, but {name} is a Parquet file; leave it out",
            field="encoding",
        )
    return found


def _refuse_reading(name: str, reading: Reading) -> None:
    """Refuse file options for a dataset, which has its own format."""
    is_format_given = reading.format is not InputFormat.AUTO
    asked = {"delimiter": reading.delimiter, "encoding": reading.encoding}
    for field, is_given in {"input_format": is_format_given, **asked}.items():
        if is_given:
            raise UsageError(
                f"{option(field)} applies to files, but {name} is a dataset; leave it out"
            )


def _file_source(
    file: BinaryIO, name: str, reading: Reading, keep: KeepTable | None = None
) -> RowSource:
    found, packing = _format_of(name, reading), compression_of(name)
    if found is InputFormat.PARQUET:
        return ParquetSource(file, name, reading.max_line_bytes, keep)
    packed = CountedStream(file) if packing else None
    stream = file if packed is None else _unpacked(packed, name, packing)
    return _text_source(stream, name, found, reading, packed=packed)


def _pipe_source(stream: BinaryIO, name: str, reading: Reading) -> RowSource:
    found = InputFormat.JSONL if reading.format is InputFormat.AUTO else reading.format
    if found is InputFormat.PARQUET:
        raise UsageError(
            f"{name} cannot be read as Parquet, which is read from its end: write it to a file"
        )
    if reading.delimiter is not None and reading.format is InputFormat.AUTO:
        found = InputFormat.CSV
    return _text_source(stream, name, found, reading, can_drain=False)


def _text_source(
    stream: BinaryIO,
    name: str,
    format: InputFormat,
    reading: Reading,
    *,
    packed: CountedStream | None = None,
    can_drain: bool = True,
) -> RowSource:
    """Return the rows of a text; `packed` is the compressed stream below, if any."""
    sample = CountedStream(stream).peek()
    encoding = reading.encoding or marked_encoding(sample)
    if encoding is not None and not is_utf8(encoding):
        below = CountedStream(stream) if packed is None else stream
        packed = packed or cast(CountedStream, below)
        transcoded = io.BufferedReader(TranscodedStream(below, name, encoding), PIECE_BYTES)
        stream = cast(BinaryIO, transcoded)
    source = _source_of(stream, name, format, reading, packed, can_drain=can_drain)
    note = None if encoding is not None else encoding_note(sample, name)
    if note is not None:
        source.facts.notes["encoding"] = note
    return source


def _source_of(
    stream: BinaryIO,
    name: str,
    format: InputFormat,
    reading: Reading,
    packed: CountedStream | None,
    *,
    can_drain: bool,
) -> RowSource:
    most = reading.max_line_bytes
    if format in _WITH_CELLS:
        delimiter = reading.delimiter_of(format)
        counted = CountedStream(stream)
        return CsvSource(counted, name, most, packed, delimiter=delimiter, can_drain=can_drain)
    if format is InputFormat.JSON:
        return ArraySource(CountedStream(stream), name, most, packed, can_drain=can_drain)
    if format is InputFormat.TXT:
        return LineSource(stream, name, most, parse=prompt_line, packed=packed, can_drain=can_drain)
    return LineSource(stream, name, most, packed=packed, can_drain=can_drain)


def _peekable(stream: BinaryIO) -> BinaryIO:
    """Return a stream of the same bytes that can be peeked."""
    if hasattr(stream, "peek"):
        return stream
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), PIECE_BYTES))


def _unpacked(packed: CountedStream, name: str, packing: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(DecompressedStream(packed, name, packing), PIECE_BYTES))


def _mode(name: str) -> int:
    try:
        return os.stat(name).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(name, error) from error


def _open(name: str) -> BinaryIO:
    try:
        return open(name, "rb", buffering=PIECE_BYTES)
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{name}: cannot be read ({reason}); check the path")


def _what_is() -> str:
    return (
        f"supported inputs are {', '.join(TEXT_SUFFIXES)} (each also with "
        f"{' or '.join(COMPRESSIONS)}), {PARQUET}, a folder of such files, a save_to_disk "
        "folder, hf:NAME:SPLIT, and JSONL piped into -"
    )


TAB = "\t"
_NAMED_DELIMITERS = {"tab": TAB, "\\t": TAB}  # typed names
_NO_DELIMITERS = '"\r\n\0'  # these have another meaning in CSV


def _is_delimiter(value: object) -> bool:
    if not isinstance(value, str):
        return False
    return value in _NAMED_DELIMITERS or (len(value) == 1 and value not in _NO_DELIMITERS)


DELIMITER = Rule(_is_delimiter, "one character, such as ';', or tab")


def compression_of(name: str) -> str:
    """Return the ending of `name` if it is that of a compressed file, else an empty string."""
    ending = Path(name).suffix.lower()
    return ending if ending in COMPRESSIONS else ""


# Column with the name of a row's input; the next name if the row has such a column.
FILE_COLUMNS = ("file", "input_file", "input_file_name")

OpenSource = Callable[[str], AbstractContextManager[RowSource]]


class SeveralSource:
    """Rows of the inputs `names`, each opened in turn by `open_source`; implements `RowSource`.

    A row's index counts the rows of all inputs, its line those of its own. Empty inputs are
    skipped, unless all are empty.
    """

    def __init__(self, names: Sequence[str], open_source: OpenSource) -> None:
        self._names = names
        self._open_source = open_source
        self._facts = InputFacts(columns=())  # of finished inputs
        self._num_begun = 0
        self._source: RowSource | None = None  # the one being read
        self._digests: list[InputDigest] = []  # of finished inputs
        self._num_bytes = 0  # of their rows
        self._rows = self._read()

    @property
    def facts(self) -> InputFacts:
        """Facts of the inputs so far; of equal notes, the first."""
        return self._facts if self._source is None else _both(self._facts, self._source.facts)

    @property
    def num_bytes_read(self) -> int:
        """Decompressed bytes of the rows so far."""
        return self._num_bytes + (0 if self._source is None else self._source.num_bytes_read)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def digest(self, *, whole: bool) -> InputDigest:
        """Return the bytes of all inputs so far, and a digest of their digests."""
        digests = list(self._digests)
        if self._source is not None:
            digests.append(self._source.digest(whole=whole))
        text = "".join(f"{each.num_bytes} {each.sha256} {each.fingerprint}\n" for each in digests)
        num_bytes = sum(each.num_bytes for each in digests)
        return InputDigest(num_bytes, hashlib.sha256(text.encode()).hexdigest(), whole)

    def drain(self) -> bool:
        """Read the rest of each input; false if one of them cannot be drained."""
        can_all = self._source is None or self._source.drain()
        while can_all and self._num_begun < len(self._names):
            self._leave()
            name = self._names[self._num_begun]
            self._num_begun += 1
            with self._open_source(name) as source:
                can_all = source.drain()
                self._digests.append(source.digest(whole=can_all))
        return can_all

    def close(self) -> None:
        """Close the input being read."""
        with suppress(ValueError):  # another thread is still reading, and ends with the process
            self._rows.close()

    def _read(self) -> Generator[Row, None, None]:
        index = 0
        while self._num_begun < len(self._names):
            name = self._names[self._num_begun]
            self._num_begun += 1
            with self._open_source(name) as source:
                self._source = source
                begin = index
                with suppress(EmptyInput):
                    for row in source:
                        yield _placed(row, index, name)
                        index += 1
                self._leave(is_empty=index == begin)
        if index == 0:
            raise refuse_empty(", ".join(self._names))

    def _leave(self, *, is_empty: bool = False) -> None:
        """Record the facts and the digest of a finished input."""
        source, self._source = self._source, None
        if source is not None:
            self._num_bytes += source.num_bytes_read
            if not is_empty:
                self._facts = _both(self._facts, source.facts)
            self._digests.append(source.digest(whole=True))


def _both(one: InputFacts, other: InputFacts) -> InputFacts:
    """Return the combined facts of two inputs."""
    notes = {**other.notes, **one.notes}
    if one.columns is None or other.columns is None:
        return InputFacts(notes)
    columns = tuple(dict.fromkeys((*one.columns, *other.columns)))
    return InputFacts(notes, columns, _unified(one, other))


def _unified(one: InputFacts, other: InputFacts) -> Any:
    """Return the Arrow schema of both, without columns that have two types.

    None unless both are Arrow tables.
    """
    if not one.columns or other.schema is None:
        return other.schema
    if one.schema is None:
        return None
    import pyarrow

    fields = []
    for name in dict.fromkeys((*one.columns, *other.schema.names)):
        both = [each.schema.field(name) for each in (one, other) if name in each.schema.names]
        if name in one.columns and name not in one.schema.names:
            continue  # two types earlier
        if len(both) == 1:
            both = [both[0].with_nullable(True)]
        try:
            unified = pyarrow.unify_schemas([pyarrow.schema([each]) for each in both])
        except pyarrow.ArrowException:
            continue
        fields.append(unified.field(0))
    return pyarrow.schema(fields)


def _placed(row: Row, index: int, name: str) -> Row:
    """Return a row of the input `name` with its index among those of all inputs."""
    is_refused = row.error is not None and row.error.code == "invalid_id"
    has_own_id = id_column(row.columns) is not None and not is_refused
    return replace(
        row,
        index=index,
        id=row.id if has_own_id else default_id(index),
        columns=_with_file(row.columns, name),
        written=None if row.written is None else _with_file(row.written, name),
        file=name,
    )


def _with_file(columns: Columns, name: str) -> Columns:
    column = next((each for each in FILE_COLUMNS if each not in columns), FILE_COLUMNS[-1])
    return {**columns, column: name}
