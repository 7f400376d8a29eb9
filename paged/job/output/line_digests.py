"""Digests of the lines of an output, in a file beside it: a record for each answered row.

A record is the digest of a line, its newline included, and that of its request. By the first a
later run notices lines that have changed, by the second `--from` finds the answer to a request.
"""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from pathlib import Path

import numpy as np

DIGEST_BYTES = 16
RECORD_BYTES = 2 * DIGEST_BYTES
_COMPARED_BYTES = 8  # of a digest, against accidents


def line_digest(line: bytes) -> bytes:
    """Return the digest of an output line, its newline included."""
    return blake2b(line, digest_size=DIGEST_BYTES).digest()


def read_digests(path: Path) -> dict[bytes, bytes]:
    """Return the request digest of each line, by the digest of the line. Raises `OSError`."""
    data = path.read_bytes()
    ends = range(RECORD_BYTES, len(data) + 1, RECORD_BYTES)
    records = (data[end - RECORD_BYTES : end] for end in ends)
    return {record[:DIGEST_BYTES]: record[DIGEST_BYTES:] for record in records}


class RecordedLines:
    """Set of the lines that a run recorded, in 8 bytes each."""

    def __init__(self, data: bytes) -> None:
        """data: complete records, and perhaps the beginning of one more."""
        words = np.frombuffer(data[: len(data) - len(data) % RECORD_BYTES], np.uint64)
        first = words.reshape(-1, RECORD_BYTES // _COMPARED_BYTES)[:, 0]
        self._known = array("Q", np.unique(first).tobytes())

    @classmethod
    def of(cls, path: Path) -> "RecordedLines | None":
        """Return the lines of a file; None if it is missing, empty or cannot be read."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        return cls(data) if len(data) >= RECORD_BYTES else None

    def __contains__(self, line: object) -> bool:
        assert isinstance(line, bytes)
        word = int(np.frombuffer(line_digest(line), np.uint64, 1)[0])
        place = bisect_left(self._known, word)
        return place < len(self._known) and self._known[place] == word
