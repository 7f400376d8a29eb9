"""Digests of the lines of an output, in a file beside it: a record for each answered row.

A record is the digest of a line, its newline included, and that of its request. By the first a
later run notices lines that have changed, by the second `--from` finds the answer to a request.
"""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16
RECORD_BYTES = 2 * DIGEST_BYTES
_COMPARED_BYTES = 8  # of a digest, against accidents


def line_digest(line: bytes) -> bytes:
    """Return the digest of an output line, its newline included."""
    return blake2b(line, digest_size=DIGEST_BYTES).digest()


def num_recorded_bytes(data: bytes) -> int:
    """Return the bytes of the complete records of a file, up to the first that is not.

    A power failure may leave zeros in place of records whose rows were not yet synced.
    """
    records = _words(data[: len(data) - len(data) % RECORD_BYTES])
    lost = np.flatnonzero(records[:, 1] == 0)
    return RECORD_BYTES * int(lost[0] if len(lost) else len(records))


def _words(records: bytes) -> NDArray[np.uint64]:
    """Return the numbers of complete records, [num_records, 4]."""
    return np.frombuffer(records, np.uint64).reshape(-1, RECORD_BYTES // _COMPARED_BYTES)


def read_digests(path: Path) -> dict[bytes, bytes]:
    """Return the request digest of each line, by the digest of the line. Raises `OSError`."""
    data = path.read_bytes()
    ends = range(RECORD_BYTES, len(data) + 1, RECORD_BYTES)
    records = (data[end - RECORD_BYTES : end] for end in ends)
    return {record[:DIGEST_BYTES]: record[DIGEST_BYTES:] for record in records}


class RecordedLines:
    """Set of the lines that a run recorded, in 8 bytes each."""

    def __init__(self, data: bytes) -> None:
        """data: complete records, and perhaps what a power failure has left of more."""
        first = _words(data[: num_recorded_bytes(data)])[:, 0]
        self._known = array("Q", np.unique(first).tobytes())

    @classmethod
    def of(cls, path: Path) -> "RecordedLines | None":
        """Return the lines of a file; None if it is missing, has none or cannot be read."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        return cls(data) if num_recorded_bytes(data) else None

    def __contains__(self, line: object) -> bool:
        assert isinstance(line, bytes)
        word = int(np.frombuffer(line_digest(line), np.uint64, 1)[0])
        place = bisect_left(self._known, word)
        return place < len(self._known) and self._known[place] == word
