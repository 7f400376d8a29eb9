"""Which reader reads an input: chosen by its name, here and nowhere else."""

import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from pagedrun.paged.job.inputs.array_source import ArraySource
from pagedrun.paged.job.inputs.arrow.dataset_source import SAVED_FILES, DatasetSource
from pagedrun.paged.job.inputs.arrow.parquet_source import ParquetSource
from pagedrun.paged.job.inputs.counted_stream import CountedStream
from pagedrun.paged.job.inputs.csv_source import CsvSource
from pagedrun.paged.job.inputs.hub_name import HUB_PREFIX, HubName
from pagedrun.paged.job.inputs.line_source import LineSource, prompt_line
from pagedrun.paged.job.inputs.reading import BY_NAME, InputFormat, Reading, packing_of
from pagedrun.paged.job.inputs.reading_stop import ReadingStop
from pagedrun.paged.job.inputs.remote_file import is_remote, open_remote
from pagedrun.paged.job.inputs.row_source import RowSource
from pagedrun.paged.job.inputs.several_source import SeveralSource
from pagedrun.paged.job.inputs.unpacked_stream import PACKINGS, UnpackedStream
from pagedrun.paged.values.errors import UsageError, option

STDIN = "-"
TEXT_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt")
PARQUET = ".parquet"
PIECE_BYTES = 1 << 16  # of a file, read at once; the delimiter of a CSV is found in the first one
_WITH_CELLS = (InputFormat.CSV, InputFormat.TSV)


@contextmanager
def open_rows(
    name: str, reading: Reading = BY_NAME, stop: ReadingStop | None = None
) -> Iterator[RowSource]:
    """Open the input `name` and yield its rows; `-` is standard input.

    Pipes and devices have no meaningful name and are taken as JSONL, unless `reading` says
    otherwise. `stop` ends the waiting for a pipe.

    Raises `UsageError` if there is no such input, it cannot be read, or no reader is for it.
    """
    stop = stop or ReadingStop()
    if is_remote(name):
        with open_remote(name) as remote:
            yield _file_source(_peekable(remote), name, reading)
        return
    if name == STDIN:
        yield _pipe_source(stop.stream(sys.stdin.buffer), name, reading)
        return
    if name.startswith(HUB_PREFIX):
        _refuse_reading(name, reading)
        yield DatasetSource.from_hub(name, reading.max_line_bytes)
        return
    mode = _mode(name)
    if stat.S_ISDIR(mode):
        if not is_saved_dataset(name):
            raise UsageError(
                f"{name} is a folder that was not written by save_to_disk; {_what_is()}"
            )
        _refuse_reading(name, reading)
        yield DatasetSource.from_folder(name, reading.max_line_bytes)
        return
    with _open(name) as file:
        if stat.S_ISREG(mode):
            yield _file_source(file, name, reading)
        else:
            yield _pipe_source(stop.stream(file), name, reading)


@contextmanager
def open_inputs(
    names: Sequence[str],
    reading: Reading = BY_NAME,
    stop: ReadingStop | None = None,
) -> Iterator[RowSource]:
    """Open one input or several, and yield the rows of all; see `open_rows` and `SeveralSource`.

    Raises `UsageError` for one that is not there or of no kind that is read, whichever it is.
    """
    if len(names) == 1:
        with open_rows(names[0], reading, stop) as source:
            yield source
        return
    for name in names:
        _check(name, reading)
    several = SeveralSource(names, lambda name: open_rows(name, reading, stop))
    try:
        yield several
    finally:
        several.close()


def inputs_stem(names: Sequence[str]) -> str:
    """Return what the default output of these inputs is named after: the first, and how many are
    behind it."""
    stem = input_stem(names[0])
    return stem if len(names) == 1 else f"{stem}+{len(names) - 1}"


def shown_inputs(names: Sequence[str]) -> str:
    """Return how messages name the inputs."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def input_stem(name: str) -> str:
    """Return what the default output is named after."""
    if name == STDIN:
        return "stdin"
    if name.startswith(HUB_PREFIX) and not is_remote(name):
        return HubName.parse(name).stem
    path = Path(name)
    if path.is_dir():
        return path.resolve().name
    return Path(path.stem).stem if path.suffix.lower() in PACKINGS else path.stem


def is_repeatable(*names: str) -> bool:
    """Whether the inputs can be read a second time, and without a download."""
    return all(name != STDIN and (Path(name).is_file() or Path(name).is_dir()) for name in names)


def file_stamp(name: str) -> tuple[int, int] | None:
    """Return what changes with an input file, size and time; None for any other input."""
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def is_saved_dataset(folder: str) -> bool:
    """Whether a folder is one that `save_to_disk` wrote."""
    return any(Path(folder, saved).is_file() for saved in SAVED_FILES)


def _check(name: str, reading: Reading) -> None:
    """Refuse one of several inputs before any is read: it may be hours until it is opened."""
    if name.startswith(HUB_PREFIX) and not is_remote(name):
        HubName.parse(name)
    elif is_remote(name) or stat.S_ISREG(_mode(name)):
        _format_of(name, reading)


def _format_of(name: str, reading: Reading) -> InputFormat:
    """Return the format of a file; `UsageError` if none is known by its name, or what is given does
    not go with it."""
    found, packing = reading.format_of(name), packing_of(name)
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
    return found


def _refuse_reading(name: str, reading: Reading) -> None:
    """Refuse what is said of the files of a dataset, which says it itself."""
    asked = {"input_format": reading.format is not InputFormat.AUTO, "delimiter": reading.delimiter}
    for field, is_given in asked.items():
        if is_given:
            raise UsageError(
                f"{option(field)} applies to files, but {name} is a dataset; leave it out"
            )


def _file_source(file: BinaryIO, name: str, reading: Reading) -> RowSource:
    found, packing = _format_of(name, reading), packing_of(name)
    if found is InputFormat.PARQUET:
        return ParquetSource(file, name, reading.max_line_bytes)
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
    """Return the rows of a text; `packed` is the stream below, if there is one."""
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
    """Return a stream of the same bytes that can be looked at without reading on."""
    if hasattr(stream, "peek"):
        return stream
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), PIECE_BYTES))


def _unpacked(packed: CountedStream, name: str, packing: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(UnpackedStream(packed, name, packing), PIECE_BYTES))


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
        f"{' or '.join(PACKINGS)}), {PARQUET}, a folder of such files, a save_to_disk "
        "folder, hf:NAME:SPLIT, and JSONL piped into -"
    )
