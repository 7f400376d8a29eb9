"""UnpackedStream: a gzip or zstandard file as the bytes that were packed into it."""

import io
import zlib
from collections.abc import Callable
from typing import Any

from pagedrun.paged.job.inputs.counted_stream import CountedStream
from pagedrun.paged.values.errors import UsageError

PACKINGS = {".gz": "gzip", ".zst": "zstandard"}
# What a decoder is given at once. Four bytes can unpack to 128 KiB of zstandard, so that this
# many become 32 MiB at most.
PIECE_BYTES = 1024
MAX_WINDOW_BYTES = 2**27  # of zstandard, the limit of its own command line program
# A file that unpacks to more than this many times its size is taken for a bomb. Prompts that
# share their text pack well: one percent of this is common, gzip cannot do much more than 1,000.
MAX_RATIO = 1000
FREE_BYTES = 2**26  # small files may unpack to this whatever their size
MAX_UNPACKED_BYTES = 2**40


class UnpackedStream(io.RawIOBase):
    """What `packed` holds, read front to back; several members in a row are one text.

    Raises `UsageError` if it is damaged, cut off, or unpacks to more than `max_bytes` or beyond
    the limits above.
    """

    def __init__(
        self, packed: CountedStream, name: str, suffix: str, max_bytes: int = MAX_UNPACKED_BYTES
    ) -> None:
        self._packed = packed
        self._name = name
        self._packing = PACKINGS[suffix]
        self._max_bytes = max_bytes
        self._new_decoder, self._damage = _decoder(name, suffix)
        self._decoder: Any = None
        self._pieces = b""  # packed bytes that wait
        self._ready = memoryview(b"")
        self._num_packed = 0
        self._num_unpacked = 0

    def readable(self) -> bool:
        """Return true: reading is all it can do."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the next piece goes; 0 at the end."""
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
                self._pieces = self._pieces.lstrip(b"\0")  # tapes and tar fill up with zeros
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
    """Return what makes a decoder of one member, and what that raises for damaged data."""
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
