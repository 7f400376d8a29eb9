"""Reads snapshot files with limits, and checks the range of every number in them.

Files are untrusted: every number that is used as an index, a size or a loop bound is checked once,
when the file is read.
"""

import errno
import io
import json
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.metrics.snapshot import (
    FACTS,
    FORMAT,
    TABLES,
    GroupSamples,
    PoolSamples,
    Snapshot,
    read_groups,
)
from pagedrun.paged.values.errors import UsageError

MAX_BYTES = 2**29  # of all columns, unpacked: far above those of a run
MAX_REASON_CHARS = 300
ADDED = ("branchings",)  # tables that files of earlier versions do not have


def read_snapshot(path: Path, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Read a snapshot of at most `max_bytes` bytes, unpacked, with all numbers in range.

    Raises `UsageError` with the name of the file if it is incomplete or invalid.
    """
    try:
        packed = _read_regular(path, max_bytes)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    try:
        snapshot = _unpack(packed, max_bytes)
        check_snapshot(snapshot)
    except Exception as error:  # zipfile and NumPy raise errors of many types
        reason = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}"
        raise UsageError(
            f"{path} is not a snapshot that pagedrun can read: {reason[:MAX_REASON_CHARS]}"
        ) from error
    return snapshot


def _unpack(packed: bytes, max_bytes: int) -> Snapshot:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        if sum(member.file_size for member in archive.infolist()) > max_bytes:
            raise ValueError(f"it unpacks to more than {max_bytes:,} bytes")
    with np.load(io.BytesIO(packed), allow_pickle=False) as columns:
        facts = json.loads(columns["facts"].tobytes())
        if facts.get("format") != FORMAT:
            raise ValueError(f"it has format {facts.get('format')!r}, not {FORMAT}")
        if any(type(facts[name]) is not int or facts[name] < 0 for name in FACTS):
            raise ValueError("its facts are not counts")
        samples = _samples(columns, facts["num_blocks"])
        first_group, further = read_groups(facts, columns)
        tables: dict[str, Any] = {
            table: kind(**{name: columns[f"{table}.{name}"] for name in kind.DTYPES})
            for table, kind in TABLES.items()
            if table not in ADDED or any(name.startswith(f"{table}.") for name in columns)
        }
    return Snapshot(
        **{name: facts[name] for name in FACTS},
        samples=samples,
        first_group=first_group,
        further=further,
        **tables,
    )


def _read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file; `OSError` for other files and for too many bytes."""
    status = path.stat()  # before opening: opening a pipe blocks
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes")
    return path.read_bytes()


def _samples(columns: Mapping[str, NDArray[Any]], num_blocks: int) -> PoolSamples:
    steps, times = columns["samples.steps"], columns["samples.times"]
    ref_counts, fills = columns["samples.ref_counts"], columns["samples.fills"]
    shape = (len(steps), num_blocks)
    if times.shape != steps.shape or ref_counts.shape != shape or fills.shape != shape:
        raise ValueError("its samples are of different lengths")
    return PoolSamples(
        steps.astype(np.int64, casting="safe"),
        times.astype(np.float64, casting="safe"),
        ref_counts.astype(np.uint16, casting="safe"),
        fills.astype(np.uint16, casting="safe"),
    )


MAX_BLOCK_SIZE = 2**16 - 1  # fills are 16 bits wide
MAX_COUNT = 2**31 - 2
MAX_BYTES_PER_TOKEN = 2**40


def check_snapshot(snapshot: Snapshot) -> None:
    """Raise `ValueError` for a number out of range."""
    _within("block_size", snapshot.block_size, 0, MAX_BLOCK_SIZE)
    _within("num_blocks", snapshot.num_blocks, 0, MAX_COUNT)
    _within("bytes_per_token", snapshot.bytes_per_token, 0, MAX_BYTES_PER_TOKEN)
    _within("num_steps", snapshot.num_steps, 0, MAX_COUNT)
    _within("row_stride", snapshot.row_stride, 1, MAX_COUNT)
    _check_samples(snapshot)
    _check_holdings(snapshot)
    _check_tables(snapshot)
    _check_groups(snapshot)


def _check_samples(snapshot: Snapshot) -> None:
    samples = snapshot.samples
    _in_range("samples.steps", samples.steps, 0, snapshot.num_steps)
    _rising("samples.steps", samples.steps)
    if not np.isfinite(samples.times).all() or (samples.times < 0).any():
        raise ValueError("samples.times are not all seconds since the run began")
    if (np.diff(samples.times) < 0).any():
        raise ValueError("samples.times decrease")
    _in_range("samples.fills", samples.fills, 0, snapshot.block_size)


def _check_holdings(snapshot: Snapshot) -> None:
    held, last = snapshot.holdings, snapshot.num_steps + 1
    for name in ("row", "sample", "position", "begin"):
        _in_range(f"holdings.{name}", getattr(held, name), 0, MAX_COUNT)
    _in_range("holdings.block", held.block, 0, snapshot.num_blocks - 1)
    _in_range("holdings.end", held.end, 0, last)
    if (held.begin > held.end).any():
        raise ValueError("holdings end before they begin")
    if (np.diff(held.begin) < 0).any():
        raise ValueError("holdings are not sorted by their beginning")


def _check_tables(snapshot: Snapshot) -> None:
    gone, nodes, lengths = snapshot.preemptions, snapshot.prefixes, snapshot.lengths
    _in_range("branchings.step", snapshot.branchings.step, 0, snapshot.num_steps)
    for name in ("row", "forked", "died", "freed"):
        _in_range(f"branchings.{name}", getattr(snapshot.branchings, name), 0, MAX_COUNT)
    _in_range("preemptions.step", gone.step, 0, snapshot.num_steps + 1)
    for name in ("row", "sample", "tokens", "blocks", "needed", "free"):
        _in_range(f"preemptions.{name}", getattr(gone, name), 0, MAX_COUNT)
    _in_range("preemptions.for_row", gone.for_row, -1, MAX_COUNT)
    for name in ("start", "rows", "row", "saved"):
        _in_range(f"prefixes.{name}", getattr(nodes, name), 0, np.iinfo(np.int64).max // 2)
    if (nodes.parent < -1).any() or (nodes.parent >= np.arange(len(nodes))).any():
        raise ValueError("prefixes.parent is not an earlier node")
    if (nodes.start > nodes.end).any():
        raise ValueError("prefixes end before they start")
    _in_range("lengths.tokens", lengths.tokens, 0, MAX_COUNT)
    _rising("lengths.tokens", lengths.tokens)
    for name in ("prompts", "answers"):
        _in_range(f"lengths.{name}", getattr(lengths, name), 0, 2**53)


def _check_groups(snapshot: Snapshot) -> None:
    shapes = [each.shape for each in snapshot.further]
    if snapshot.first_group is not None:
        shapes.append(snapshot.first_group)
        if snapshot.first_group.num_blocks != snapshot.num_blocks:
            raise ValueError("the first group of layers has another pool")
    for shape in shapes:
        _within("groups.num_layers", shape.num_layers, 0, MAX_COUNT)
        _within("groups.window", shape.window or 1, 1, MAX_COUNT)
        _within("groups.num_blocks", shape.num_blocks, 1, MAX_COUNT)
        _within("groups.bytes_per_token", shape.bytes_per_token, 0, MAX_BYTES_PER_TOKEN)
    for group in snapshot.further:
        _check_group(group, len(snapshot.samples), snapshot.block_size)


def _check_group(group: GroupSamples, num_samples: int, block_size: int) -> None:
    num_blocks, tables = group.shape.num_blocks, group.tables
    _within("groups.peak_blocks", group.peak_blocks, 0, num_blocks)
    if not group.ref_counts.shape == group.fills.shape == (num_samples, num_blocks):
        raise ValueError("the samples of a group are of different lengths")
    _in_range("groups.fills", group.fills, 0, block_size)
    _in_range("groups.moment", tables.moment, 0, num_samples - 1)
    for name in ("row", "sample", "first", "count"):
        _in_range(f"groups.{name}", getattr(tables, name), 0, MAX_COUNT)
    if group.blocks.shape != (tables.count.sum(dtype=np.int64),):
        raise ValueError("the tables of a group do not match its blocks")
    _in_range("groups.blocks", group.blocks, 0, num_blocks - 1)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, outside {least} to {most}")


def _in_range(name: str, column: NDArray[Any], least: int, most: int) -> None:
    if column.size and (column.min() < least or column.max() > most):
        raise ValueError(f"{name} holds a number outside {least} to {most}")


def _rising(name: str, column: NDArray[Any]) -> None:
    if (np.diff(column) <= 0).any():
        raise ValueError(f"{name} do not increase")
