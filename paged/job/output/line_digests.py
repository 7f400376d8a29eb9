"""Digests of the lines of an output, in a file beside it: a record for each row.

A record is the digest of a line, its newline included, and that of its request, zeros without one.
By the first a later run notices lines that have changed, by the second `--from` finds the answer to
a request. The manifest of a run that ended has the sum of the lines, for when the file is missing.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.files.regular import open_regular

DIGEST_BYTES = 16
RECORD_BYTES = 2 * DIGEST_BYTES
NO_REQUEST = bytes(DIGEST_BYTES)
_COMPARED_BYTES = 8  # of a digest, against accidents
_MODULUS = 1 << (8 * DIGEST_BYTES)


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
    data = _contents(path)
    ends = range(RECORD_BYTES, len(data) + 1, RECORD_BYTES)
    records = (data[end - RECORD_BYTES : end] for end in ends)
    return {record[:DIGEST_BYTES]: record[DIGEST_BYTES:] for record in records}


class RecordedLines:
    """Set of the lines that a run recorded, and of those found in its output, in 9 bytes each."""

    def __init__(self, data: bytes) -> None:
        """data: complete records, and perhaps what a power failure has left of more."""
        first = _words(data[: num_recorded_bytes(data)])[:, 0]
        self._known = array("Q", np.unique(first).tobytes())
        self._found = bytearray(len(self._known))

    @classmethod
    def of(cls, path: Path) -> "RecordedLines | None":
        """Return the lines of a file; None if it is missing or has none. Raises `OSError`."""
        try:
            data = _contents(path)
        except FileNotFoundError:
            return None
        return cls(data) if num_recorded_bytes(data) else None

    def find(self, digest: bytes) -> bool:
        """Return whether a line was recorded, by its digest, and note that it is still there."""
        word = int(np.frombuffer(digest, np.uint64, 1)[0])
        place = bisect_left(self._known, word)
        if place == len(self._known) or self._known[place] != word:
            return False
        self._found[place] = True
        return True

    @property
    def num_missing(self) -> int:
        """Number of recorded lines that were not found."""
        return len(self._found) - sum(self._found)

    def found_records(self, path: Path) -> bytes:
        """Return the records of the found lines, by the file that these were read from.

        Raises `OSError`.
        """
        data = _contents(path)
        records = _words(data[: num_recorded_bytes(data)])
        places = np.searchsorted(np.frombuffer(self._known, np.uint64), records[:, 0])
        return records[np.frombuffer(self._found, np.bool_)[places]].tobytes()


def _contents(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


@dataclass(frozen=True, slots=True)
class LineSum:
    """Number of lines, and the sum of their digests, as numbers modulo 2**128, in hex.

    The order of the lines does not matter.
    """

    count: int
    digests: str

    def plus(self, digest: bytes) -> "LineSum":
        """Return the sum with one more line, by its digest."""
        added = int(self.digests, 16) + int.from_bytes(digest, "little")
        return LineSum(self.count + 1, f"{added % _MODULUS:032x}")


NO_LINES = LineSum(0, f"{0:032x}")
