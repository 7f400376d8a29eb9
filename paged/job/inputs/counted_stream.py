"""CountedStream: a byte stream that knows the size and SHA-256 of what was read from it."""

import hashlib
from typing import BinaryIO, cast

CHUNK_BYTES = 1 << 16


class CountedStream:
    """Reads from `stream`; what is read is counted and hashed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    @property
    def sha256(self) -> str:
        """Return the hexadecimal digest of the bytes read so far."""
        return self._sha256.hexdigest()

    def read(self, limit: int) -> bytes:
        """Return at most `limit` bytes; none at the end."""
        return self._count(self._stream.read(limit))

    def readline(self, limit: int) -> bytes:
        """Return at most `limit` bytes, up to and with the next newline; none at the end."""
        return self._count(self._stream.readline(limit))

    def peek(self) -> bytes:
        """Return what comes next, without reading on; nothing if the stream cannot tell."""
        peek = getattr(self._stream, "peek", None)
        return b"" if peek is None else cast(bytes, peek(CHUNK_BYTES))

    def drain(self) -> None:
        """Read to the end, so that size and digest are those of the whole stream."""
        while self.read(CHUNK_BYTES):
            pass

    def _count(self, data: bytes) -> bytes:
        self._sha256.update(data)
        self.num_bytes += len(data)
        return data
