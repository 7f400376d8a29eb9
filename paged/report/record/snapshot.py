"""Snapshot: what became of every block of the pool in a run.

Token ids and texts are not in it: a snapshot may be passed on where the prompts may not.
"""

import errno
import io
import json
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.report.record.snapshot_checks import check_snapshot
from pagedrun.paged.report.record.snapshot_tables import (
    Float64s,
    Holdings,
    Int64s,
    Lengths,
    Preemptions,
    PrefixNodes,
    Table,
)
from pagedrun.paged.values.errors import UsageError

FORMAT = 1
MAX_BYTES = 2**29  # of all columns, unpacked: far above what a run keeps
MAX_REASON_CHARS = 300
_TABLES: dict[str, type[Table]] = {
    "holdings": Holdings,
    "preemptions": Preemptions,
    "prefixes": PrefixNodes,
    "lengths": Lengths,
}
_FACTS = ("block_size", "num_blocks", "bytes_per_token", "num_steps", "row_stride")


@dataclass(frozen=True, slots=True)
class PoolSamples:
    """The whole pool at some of the steps, as it was when the step had been launched.

    steps: [num_samples] int64, rising. times: [num_samples] float64, seconds since the run began.
    ref_counts: [num_samples, num_blocks] uint16, holders of each block. fills: the same shape,
    tokens that it stores; a block without holders that stores some is cached.
    """

    steps: Int64s
    times: Float64s
    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One run's pool, block by block. Bytes per token are those of all layers.

    `row_stride`: holdings are those of rows whose index it divides; 1 means all of them.
    `num_steps` is how many steps the run had. Counts of tokens and hits are in the report.
    """

    block_size: int
    num_blocks: int
    bytes_per_token: int
    num_steps: int
    row_stride: int
    samples: PoolSamples
    holdings: Holdings
    preemptions: Preemptions
    prefixes: PrefixNodes
    lengths: Lengths

    def to_bytes(self) -> bytes:
        """Return the snapshot as a NumPy archive (.npz)."""
        facts = {"format": FORMAT} | {name: getattr(self, name) for name in _FACTS}
        columns: dict[str, NDArray[Any]] = {
            "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
            "samples.steps": self.samples.steps,
            "samples.times": self.samples.times,
            "samples.ref_counts": self.samples.ref_counts,
            "samples.fills": self.samples.fills,
        }
        for table in _TABLES:
            for name, column in getattr(self, table).columns().items():
                columns[f"{table}.{name}"] = column
        archive = io.BytesIO()
        np.savez_compressed(archive, allow_pickle=False, **columns)
        return archive.getvalue()

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Read a snapshot, whoever wrote it: all that it holds is in range afterwards.

        Raises `UsageError`, which names the file, for one that is not whole or makes no sense.
        """
        try:
            packed = _read_regular(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror})") from error
        try:
            snapshot = cls._unpack(packed)
            check_snapshot(snapshot)
        except Exception as error:  # a hostile archive makes zipfile and NumPy raise all sorts
            reason = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}"
            raise UsageError(
                f"{path} is not a snapshot that pagedrun can read: {reason[:MAX_REASON_CHARS]}"
            ) from error
        return snapshot

    @classmethod
    def _unpack(cls, packed: bytes) -> "Snapshot":
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_BYTES:,} bytes")
        with np.load(io.BytesIO(packed), allow_pickle=False) as columns:
            facts = json.loads(columns["facts"].tobytes())
            if facts.get("format") != FORMAT:
                raise ValueError(f"it has format {facts.get('format')!r}, not {FORMAT}")
            if any(type(facts[name]) is not int or facts[name] < 0 for name in _FACTS):
                raise ValueError("its facts are not counts")
            samples = _samples(columns, facts["num_blocks"])
            tables: dict[str, Any] = {
                table: kind(**{name: columns[f"{table}.{name}"] for name in kind.DTYPES})
                for table, kind in _TABLES.items()
            }
        return cls(**{name: facts[name] for name in _FACTS}, samples=samples, **tables)


def _read_regular(path: Path) -> bytes:
    """Return the bytes of a file; `OSError` for what may have no end, and for far too many."""
    status = path.stat()  # before it is opened: opening a pipe waits for whoever writes to it
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if status.st_size > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES:,} bytes")
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
