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
from pagedrun.paged.job.inputs.reading_stop import ReadingStop
from pagedrun.paged.job.inputs.remote_file import is_remote, open_remote
from pagedrun.paged.job.inputs.row_source import RowSource
from pagedrun.paged.job.inputs.several_source import SeveralSource
from pagedrun.paged.job.inputs.unpacked_stream import PACKINGS, UnpackedStream
from pagedrun.paged.values.errors import UsageError

STDIN = "-"
DEFAULT_MAX_LINE_BYTES = 64 * 2**20
TEXT_SUFFIXES = (".jsonl", ".json", ".csv", ".txt")
PARQUET = ".parquet"


@contextmanager
def open_rows(
    name: str, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES, stop: ReadingStop | None = None
) -> Iterator[RowSource]:
    """Open the input `name` and yield its rows; `-` is JSONL on standard input.

    `stop` ends the waiting for a pipe.

    Raises `UsageError` if there is no such input, it cannot be read, or no reader is for it.
    Pipes and devices have no meaningful name and are taken as JSONL.
    """
    stop = stop or ReadingStop()
    if is_remote(name):
        with open_remote(name) as remote:
            yield _file_source(remote, name, max_line_bytes)
        return
    if name == STDIN:
        yield LineSource(stop.stream(sys.stdin.buffer), name, max_line_bytes, can_drain=False)
        return
    if name.startswith(HUB_PREFIX):
        yield DatasetSource.from_hub(name, max_line_bytes)
        return
    mode = _mode(name)
    if stat.S_ISDIR(mode):
        if not any(Path(name, saved).is_file() for saved in SAVED_FILES):
            raise UsageError(f"{name} is a folder that save_to_disk did not write; {_what_is()}")
        yield DatasetSource.from_folder(name, max_line_bytes)
        return
    with _open(name) as file:
        if stat.S_ISREG(mode):
            yield _file_source(file, name, max_line_bytes)
        else:
            yield LineSource(stop.stream(file), name, max_line_bytes, can_drain=False)


@contextmanager
def open_inputs(
    names: Sequence[str],
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    stop: ReadingStop | None = None,
) -> Iterator[RowSource]:
    """Open one input or several, and yield the rows of all; see `open_rows` and `SeveralSource`.

    Raises `UsageError` for one that is not there or of no kind that is read, whichever it is.
    """
    if len(names) == 1:
        with open_rows(names[0], max_line_bytes, stop) as source:
            yield source
        return
    for name in names:
        _check(name)
    several = SeveralSource(names, lambda name: open_rows(name, max_line_bytes, stop))
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


def _check(name: str) -> None:
    """Refuse one of several inputs before any is read: it may be hours until it is opened."""
    if name.startswith(HUB_PREFIX) and not is_remote(name):
        HubName.parse(name)
    elif is_remote(name) or stat.S_ISREG(_mode(name)):
        suffix, packing = _suffixes(name)
        if suffix not in TEXT_SUFFIXES and (suffix != PARQUET or packing):
            raise _unknown_kind(name)


def _unknown_kind(name: str) -> UsageError:
    return UsageError(f"{name} is of no kind known by its name; {_what_is()}")


def _file_source(file: BinaryIO, name: str, max_line_bytes: int) -> RowSource:
    suffix, packing = _suffixes(name)
    if suffix == PARQUET and not packing:
        return ParquetSource(file, name, max_line_bytes)
    if suffix not in TEXT_SUFFIXES:
        raise _unknown_kind(name)
    packed = CountedStream(file) if packing else None
    stream = file if packed is None else _unpacked(packed, name, packing)
    if suffix == ".jsonl":
        return LineSource(stream, name, max_line_bytes, packed=packed)
    if suffix == ".txt":
        return LineSource(stream, name, max_line_bytes, parse=prompt_line, packed=packed)
    if suffix == ".json":
        return ArraySource(CountedStream(stream), name, max_line_bytes, packed)
    return CsvSource(CountedStream(stream), name, max_line_bytes, packed)


def _suffixes(name: str) -> tuple[str, str]:
    """Return the suffix that tells the format, and that of the packing around it, if any."""
    path = Path(name)
    packing = path.suffix.lower()
    if packing in PACKINGS:
        return Path(path.stem).suffix.lower(), packing
    return packing, ""


def _unpacked(packed: CountedStream, name: str, packing: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(UnpackedStream(packed, name, packing), 1 << 16))


def _mode(name: str) -> int:
    try:
        return os.stat(name).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(name, error) from error


def _open(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{name}: cannot be read ({reason}); check the path")


def _what_is() -> str:
    return (
        f"what is read is {', '.join(TEXT_SUFFIXES)} (each also with {' or '.join(PACKINGS)}), "
        f"{PARQUET}, a save_to_disk folder, hf:NAME:SPLIT, and JSONL piped into -"
    )
