"""Byte streams below the row sources: counted and hashed, decompressed, interruptible, remote."""

import hashlib
import io
import os
import select
import zlib
from collections.abc import Callable
from threading import Event
from typing import Any, BinaryIO, cast

from pagedrun.paged.values.errors import UsageError

CHUNK_BYTES = 1 << 16


class CountedStream:
    """Stream that counts and hashes the bytes read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of the bytes read so far."""
        return self._sha256.hexdigest()

    def read(self, limit: int) -> bytes:
        """Return at most `limit` bytes; none at the end."""
        return self._count(self._stream.read(limit))

    def readline(self, limit: int) -> bytes:
        """Return at most `limit` bytes, up to and with the next newline; none at the end."""
        return self._count(self._stream.readline(limit))

    def peek(self) -> bytes:
        """Return the next bytes without consuming them; nothing if the stream cannot."""
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


COMPRESSIONS = {".gz": "gzip", ".zst": "zstandard"}
# Input of one decoder call. Four bytes can decompress to 128 KiB of zstandard, so that this many
# become 32 MiB at most.
PIECE_BYTES = 1024
MAX_WINDOW_BYTES = 2**27  # of zstandard, the limit of its own command line program
# A larger ratio of decompressed to compressed bytes is refused as a bomb. Prompts with shared text
# compress well: 100 is common, and gzip cannot do much more than 1,000.
MAX_RATIO = 1000
FREE_BYTES = 2**26  # small files may decompress to this much at any ratio
MAX_UNPACKED_BYTES = 2**40


class DecompressedStream(io.RawIOBase):
    """Decompressed contents of `packed`, read front to back; several members are concatenated.

    Raises `UsageError` if the data is damaged, truncated, or decompresses to more than `max_bytes`
    or beyond the limits above.
    """

    def __init__(
        self, packed: CountedStream, name: str, suffix: str, max_bytes: int = MAX_UNPACKED_BYTES
    ) -> None:
        self._packed = packed
        self._name = name
        self._packing = COMPRESSIONS[suffix]
        self._max_bytes = max_bytes
        self._new_decoder, self._damage = _decoder(name, suffix)
        self._decoder: Any = None
        self._pieces = b""  # compressed bytes not yet decoded
        self._ready = memoryview(b"")
        self._num_packed = 0
        self._num_unpacked = 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the next piece; 0 at the end."""
        while not self._ready:
            if not self._pieces:
                self._pieces = self._packed.read(PIECE_BYTES)
            if not self._pieces:
                self._finish()
                return 0
            self._unpack()
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _unpack(self) -> None:
        if self._decoder is None:
            if self._packing == "gzip" and self._num_packed:
                self._pieces = self._pieces.lstrip(b"\0")  # tapes and tar pad with zeros
                if not self._pieces:
                    return
            self._decoder = self._new_decoder()
        num_given = len(self._pieces)
        try:
            data = self._decoder.decompress(self._pieces)
        except self._damage as error:
            raise UsageError(
                f"{self._name} is not valid {self._packing} data: damaged near byte "
                f"{self._num_packed}; unpack it, or download it again"
            ) from error
        self._pieces = self._decoder.unused_data if self._decoder.eof else b""
        if self._decoder.eof:
            self._decoder = None
        self._num_packed += num_given - len(self._pieces)
        self._num_unpacked += len(data)
        self._ready = memoryview(data)
        self._refuse_bomb()

    def _finish(self) -> None:
        if self._decoder is not None:
            raise UsageError(
                f"{self._name} is truncated: the {self._packing} data ends at byte "
                f"{self._num_packed}; download it again"
            )

    def _refuse_bomb(self) -> None:
        most = min(max(FREE_BYTES, self._num_packed * MAX_RATIO), self._max_bytes)
        if self._num_unpacked > most:
            raise UsageError(
                f"{self._name} unpacks to more than {most:,} bytes from its first "
                f"{self._num_packed:,}, as malicious files do; if it is not one, unpack it and "
                "pass the plain file"
            )


def _decoder(name: str, suffix: str) -> tuple[Callable[[], Any], type[Exception]]:
    """Return a factory of decoders for one member, and their exception for damaged data."""
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    try:
        import zstandard
    except ImportError as error:
        raise UsageError(
            f"{name} needs the package zstandard: pip install zstandard, or unpack it first"
        ) from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    return unpacker.decompressobj, zstandard.ZstdError


TICK_MILLISECONDS = 100


class ReadingStoppedError(Exception):
    """Reading was cancelled, because the job is over."""


class ReadCancellation:
    """Cancellation of readers: they call `check` for every row; `set` makes the next call raise."""

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        """Cancel every reader."""
        self._event.set()

    def check(self) -> None:
        """Raise `ReadingStoppedError` after cancellation."""
        if self._event.is_set():
            raise ReadingStoppedError

    def stream(self, file: BinaryIO) -> BinaryIO:
        """Return a stream of the same bytes that is also cancelled while it waits for input.

        `file` is a pipe or a device, not read so far.
        """
        try:
            descriptor = file.fileno()
        except (OSError, ValueError, AttributeError):
            return file  # in memory: it never waits
        return cast(BinaryIO, io.BufferedReader(_PolledStream(descriptor, self)))


class _PolledStream(io.RawIOBase):
    """Reads from a file descriptor owned by the caller."""

    def __init__(self, descriptor: int, stop: ReadCancellation) -> None:
        self._descriptor = descriptor
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the available bytes; 0 at the end."""
        self._stop.check()
        while not self._poll.poll(TICK_MILLISECONDS):
            self._stop.check()
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)


SCHEMES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}  # with the package that each needs


def is_remote(name: str) -> bool:
    """Return true if a name is the address of a file in an object store."""
    scheme, mark, _ = name.partition("://")
    return bool(mark) and scheme in SCHEMES


def open_remote(name: str) -> BinaryIO:
    """Open the file at an address, seekable.

    Raises `UsageError` if it cannot be opened, or its package is not installed.
    """
    system, path = _system(name)
    try:
        return cast(BinaryIO, system.open(path, "rb"))
    except Exception as error:  # store and network raise various errors
        raise UsageError(f"{name}: cannot be opened ({reason_of(error)})") from error


def matching(pattern: str) -> list[str]:
    """Return the sorted addresses matched by a pattern; raises as `open_remote` does."""
    system, path = _system(pattern)
    try:
        found = sorted(system.glob(path))
    except Exception as error:
        raise UsageError(f"{pattern}: cannot be listed ({reason_of(error)})") from error
    return [str(system.unstrip_protocol(each)) for each in found]


def _system(name: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    package = SCHEMES[name.partition("://")[0]]
    try:
        import fsspec

        return cast(tuple[Any, str], fsspec.core.url_to_fs(name))
    except ImportError as error:
        raise UsageError(
            f"{name} needs the packages fsspec and {package}: pip install fsspec {package}"
        ) from error
    except Exception as error:
        raise UsageError(f"{name}: cannot be opened ({reason_of(error)})") from error


def reason_of(error: Exception) -> str:
    """Return the first line of a library's error."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
