"""Cursor: reads the values at the beginning of a GGUF file, one after the other."""

import mmap
import struct

from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

# By the numbers of their types; of strings and arrays the length comes first.
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_COUNT = "<Q"
_LENGTH_BYTES = 8


class Cursor:
    """Whatever a length says, no more is read than the file has: a damaged one ends at once.

    Raises `ModelError`, which names `origin`, for what does not fit into the file, is no UTF-8, or
    is of no type that GGUF has.
    """

    def __init__(self, memory: mmap.mmap, origin: str) -> None:
        self._memory = memory
        self.origin = origin
        self.position = 0

    def number(self, code: str) -> int:
        """Return an integer, by its code for `struct`."""
        [value] = struct.unpack_from(code, self._memory, self._passed(struct.calcsize(code)))
        return int(value)

    def count(self, what: str, bytes_each: int) -> int:
        """Return how many of something follow, each of at least so many bytes."""
        count = self.number(_COUNT)
        if count * bytes_each > len(self._memory) - self.position:
            raise self.corrupt(f"it is too short for the {count:,} {what} that it declares")
        return count

    def string(self) -> str:
        """Return a string, whose length comes first."""
        length = self.count("characters", 1)
        start = self._passed(length)
        try:
            return self._memory[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt("it contains a name or a text that is not UTF-8") from error

    def value(self) -> JSONValue:
        """Return a value, whose type comes first."""
        kind = self.number("<I")
        if kind != _ARRAY:
            return self._scalar(kind)
        kind = self.number("<I")
        if kind == _STRING:
            return [self.string() for _ in range(self.count("strings", _LENGTH_BYTES))]
        code = self._code(kind)
        size = struct.calcsize(code)
        count = self.count("numbers", size)
        start = self._passed(count * size)
        return list(struct.unpack_from(f"<{count}{code[1]}", self._memory, start))

    def corrupt(self, why: str) -> ModelError:
        """Return the error for a file that is not what it must be."""
        return ModelError(f"{self.origin} is truncated or corrupt: {why}; download it again")

    def _scalar(self, kind: int) -> JSONValue:
        if kind == _STRING:
            return self.string()
        code = self._code(kind)
        value: JSONValue
        [value] = struct.unpack_from(code, self._memory, self._passed(struct.calcsize(code)))
        return value

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise self.corrupt(f"it contains a value of the unknown type {kind}")
        return _NUMBERS[kind]

    def _passed(self, num_bytes: int) -> int:
        """Return where the next bytes are, and go behind them."""
        start = self.position
        if num_bytes > len(self._memory) - start:
            raise self.corrupt("it ends within its header")
        self.position += num_bytes
        return start
