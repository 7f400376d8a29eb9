"""A snapshot's file, read with limits: whoever wrote it, all that it holds is in range."""

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

from pagedrun.paged.report.record.group_columns import read_groups
from pagedrun.paged.report.record.snapshot import FACTS, FORMAT, TABLES, PoolSamples, Snapshot
from pagedrun.paged.report.record.snapshot_checks import check_snapshot
from pagedrun.paged.values.errors import UsageError

MAX_BYTES = 2**29  # of all columns, unpacked: far above what a run keeps
MAX_REASON_CHARS = 300
ADDED = ("branchings",)  # tables that files of earlier versions do not have


def read_snapshot(path: Path, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Read a snapshot of at most `max_bytes` bytes, unpacked; all that it holds is in range.

    Raises `UsageError`, which names the file, for one that is not whole or makes no sense.
    """
    try:
        packed = _read_regular(path, max_bytes)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    try:
        snapshot = _unpack(packed, max_bytes)
        check_snapshot(snapshot)
    except Exception as error:  # a hostile archive makes zipfile and NumPy raise all sorts
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
    """Return the bytes of a file; `OSError` for what may have no end, and for far too many."""
    status = path.stat()  # before it is opened: opening a pipe waits for whoever writes to it
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
