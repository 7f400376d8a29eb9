"""Encodings of text inputs: UTF-8, another one that is found by its mark or given, or a guess."""

import codecs
import io
import re
from typing import Any

from pagedrun.paged.job.inputs.byte_streams import CHUNK_BYTES
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.rules import Rule

# First bytes of files with a byte order mark. Those of UTF-16 begin those of UTF-32.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Escapes, whose texts grow, or that take quadratic time.
_NO_ENCODINGS = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
_UTF8 = ("utf-8", "utf-8-sig", "ascii")


def _is_encoding(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return codecs.lookup(value).name not in _NO_ENCODINGS and "".encode(value) is not None
    except (LookupError, ValueError):
        return False


ENCODING = Rule(_is_encoding, "the name of an encoding, such as utf-8, utf-16, cp1252 or shift_jis")


def marked_encoding(first_bytes: bytes) -> str | None:
    """Return the encoding of a text by its byte order mark, None for UTF-8 or without one."""
    return next((each for mark, each in _MARKS.items() if first_bytes.startswith(mark)), None)


def is_utf8(encoding: str) -> bool:
    """Return true if texts in an encoding are read as UTF-8."""
    return codecs.lookup(encoding).name in _UTF8


class TranscodedStream(io.RawIOBase):
    """UTF-8 bytes of the text in `stream`, read front to back; `name` is used in messages.

    What is no text in `encoding` is no UTF-8 either, so that it fails its row alone. Raises
    `UsageError` for a text that is cut off within a character.
    """

    def __init__(self, stream: Any, name: str, encoding: str) -> None:
        self._stream = stream
        self._name = name
        self._encoding = codecs.lookup(encoding).name
        is_utf = self._encoding.startswith("utf-")
        self._errors = "surrogatepass" if is_utf else "surrogateescape"
        self._decoder = codecs.getincrementaldecoder(encoding)(self._errors)
        self._num_bytes = 0
        self._has_ended = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the next piece; 0 at the end."""
        while not self._ready and not self._has_ended:
            data = self._stream.read(CHUNK_BYTES)
            self._has_ended = not data
            try:
                text = self._decoder.decode(data, final=self._has_ended)
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{self._name} is not {self._encoding} near byte {self._num_bytes} "
                    f"({error.reason}); is the file complete, and {option('encoding')} right?",
                    field="encoding",
                ) from error
            self._num_bytes += len(data)
            self._ready = memoryview(text.encode("utf-8", self._errors))
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


# Letters of Western languages stand alone among others of ASCII; those of other alphabets do not.
_ALONE = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_MOSTLY = 0.7


def encoding_note(sample: bytes, name: str) -> str | None:
    """Return a sentence with the likely encoding of a file that begins with `sample`.

    None if it is UTF-8 as far as that goes.
    """
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError as error:
        line = sample.count(b"\n", 0, error.start) + 1
    else:
        return None
    num_alone, num_all = len(_ALONE.findall(sample)), len(_NOT_ASCII.findall(sample))
    likely = (
        f"it looks like Windows-1252, as saved by spreadsheets: pass {option('encoding')} cp1252"
        if num_alone >= _MOSTLY * num_all
        else f"name its encoding with {option('encoding')}, such as cp1251, gb18030 or shift_jis"
    )
    return f"{name}, line {line}: the text is not UTF-8, so that such rows fail; {likely}"
