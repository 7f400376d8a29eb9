"""GGUF files: metadata and tensors of a model in one file, or in several parts.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package `gguf` reads such
files too, but trusts every length in them, so that a forged one never ends. Here each length is
checked against the size of the file before anything is read or allocated.
"""

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pagedrun.paged.files.json_object import refuse_lfs_pointer
from pagedrun.paged.files.regular import open_regular
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SUFFIX = ".gguf"


def is_gguf(path: Path) -> bool:
    """Return true for a path with the suffix .gguf that is no folder."""
    return path.suffix.lower() == _SUFFIX and not path.is_dir()


class BlockType(NamedTuple):
    """Block of `num_weights` numbers of a row, stored in `num_bytes` bytes."""

    name: str
    num_weights: int
    num_bytes: int


# By their numbers in ggml.h.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
}
# Names of quantized types.
PACKED_TYPES = tuple(each.name for each in BLOCK_TYPES.values() if each.num_weights > 1)

# struct codes by value type. Strings and arrays begin with their length.
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
    """Bounds-checked reader of a mapped file.

    Raises `ModelError` naming `origin` for lengths beyond the file, invalid UTF-8, and unknown
    types.
    """

    def __init__(self, memory: mmap.mmap, origin: str) -> None:
        self._memory = memory
        self.origin = origin
        self.position = 0

    def number(self, code: str) -> int:
        """Return an integer with a code of `struct`."""
        [value] = struct.unpack_from(code, self._memory, self._advance(struct.calcsize(code)))
        return int(value)

    def count(self, what: str, bytes_each: int) -> int:
        """Return a count of items, each of at least `bytes_each` bytes."""
        count = self.number(_COUNT)
        if count * bytes_each > len(self._memory) - self.position:
            raise self.corrupt(f"it is too short for the {count:,} {what} that it declares")
        return count

    def string(self) -> str:
        """Return a string, stored after its length."""
        length = self.count("characters", 1)
        start = self._advance(length)
        try:
            return self._memory[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt("it contains a name or a text that is not UTF-8") from error

    def value(self) -> JSONValue:
        """Return a value, stored after its type."""
        kind = self.number("<I")
        if kind != _ARRAY:
            return self._scalar(kind)
        kind = self.number("<I")
        if kind == _STRING:
            return [self.string() for _ in range(self.count("strings", _LENGTH_BYTES))]
        code = self._code(kind)
        size = struct.calcsize(code)
        count = self.count("numbers", size)
        start = self._advance(count * size)
        return list(struct.unpack_from(f"<{count}{code[1]}", self._memory, start))

    def corrupt(self, why: str) -> ModelError:
        """Return the error for a damaged file."""
        return ModelError(f"{self.origin} is truncated or corrupt: {why}; download it again")

    def _scalar(self, kind: int) -> JSONValue:
        if kind == _STRING:
            return self.string()
        code = self._code(kind)
        value: JSONValue
        [value] = struct.unpack_from(code, self._memory, self._advance(struct.calcsize(code)))
        return value

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise self.corrupt(f"it contains a value of the unknown type {kind}")
        return _NUMBERS[kind]

    def _advance(self, num_bytes: int) -> int:
        """Return the current position and advance by `num_bytes`."""
        start = self.position
        if num_bytes > len(self._memory) - start:
            raise self.corrupt("it ends within its header")
        self.position += num_bytes
        return start


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_VALUES = 2**48
# Minimum size of a metadata value, and of a tensor info.
_VALUE_BYTES, _INFO_BYTES = 13, 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` as torch has it, rows first; `offset` in bytes from the start of its file."""

    shape: tuple[int, ...]
    type: BlockType
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes of its blocks."""
        return math.prod(self.shape) // self.type.num_weights * self.type.num_bytes


class GgufPart:
    """A mapped GGUF file: `metadata`, and `tensors` by their names in the file; see `open`."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory
        cursor = Cursor(memory, str(path))
        if memory[: len(_MAGIC)] != _MAGIC:
            raise ModelError(f"{path} is not a GGUF file, despite its name")
        cursor.position = len(_MAGIC)
        version = cursor.number("<I")
        if version not in _VERSIONS:
            raise ModelError(
                f"{path} is a GGUF file of version {version}, but pagedrun reads 2 and 3; convert "
                "the model again with a newer llama.cpp"
            )
        num_tensors = cursor.count("tensors", _INFO_BYTES)
        num_values = cursor.count("values", _VALUE_BYTES)
        self.metadata: dict[str, JSONValue] = {}
        for _ in range(num_values):
            name = cursor.string()
            if name in self.metadata:
                raise cursor.corrupt(f"it contains {ascii(name)[:80]} twice")
            self.metadata[name] = cursor.value()
        infos = [_tensor_info(cursor) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            raise cursor.corrupt("general.alignment is not a valid size")
        self._header_bytes = cursor.position
        start = -(-cursor.position // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in infos:
            tensor = GgufTensor(shape, kind, start + offset)
            if name in self.tensors:
                raise cursor.corrupt(f"it contains the tensor {ascii(name)[:80]} twice")
            if tensor.offset + tensor.num_bytes > len(memory):
                raise cursor.corrupt(f"it ends before the end of the tensor {ascii(name)[:80]}")
            self.tensors[name] = tensor

    @classmethod
    def open(cls, path: Path) -> "GgufPart":
        """Map a file and read its header; raises `ModelError` if it is not GGUF, or damaged."""
        try:
            with open_regular(path) as file:
                refuse_lfs_pointer(path)
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError as error:
            raise ModelError(f"{path} does not exist; download the model again") from error
        except (OSError, ValueError) as error:  # ValueError: an empty file
            reason = error.strerror if isinstance(error, OSError) else error
            raise ModelError(f"{path} cannot be read ({reason}); download it again") from error
        return cls(path, memory)

    @property
    def header(self) -> bytes:
        """Bytes of metadata and tensor infos."""
        return self._memory[: self._header_bytes]

    def bytes_of(self, name: str) -> "NDArray[np.uint8]":
        """Return the mapped bytes of a tensor, [num_bytes]; the file is never written."""
        import numpy as np

        tensor = self.tensors[name]
        return np.frombuffer(self._memory, np.uint8, tensor.num_bytes, tensor.offset)


def _tensor_info(cursor: Cursor) -> tuple[str, tuple[int, ...], BlockType, int]:
    """Return name, shape, type, and offset after the header of a tensor."""
    name = cursor.string()
    shown = ascii(name)[:80]
    num_dims = cursor.number("<I")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.corrupt(f"the tensor {shown} has {num_dims} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(num_dims))[::-1]  # the fastest comes first
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    if kind not in BLOCK_TYPES:
        known = ", ".join(each.name for each in BLOCK_TYPES.values())
        raise ModelError(
            f"{cursor.origin}: the tensor {shown} is stored as type {kind} of GGUF, but pagedrun "
            f"reads {known}; use a version of the model in one of those, such as Q4_K_M"
        )
    block = BLOCK_TYPES[kind]
    if not 1 <= math.prod(shape) <= _MAX_VALUES or shape[-1] % block.num_weights:
        raise cursor.corrupt(f"the tensor {shown} has the shape {list(shape)}")
    return name, shape, block, offset


_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 999


class GgufFile:
    """Metadata of the first part, tensors of all parts by their names in the file; see `open`."""

    def __init__(self, parts: list[GgufPart]) -> None:
        first = parts[0]
        self.path = first.path
        self.metadata: dict[str, JSONValue] = first.metadata
        self.parts = tuple(parts)
        self.tensors: dict[str, GgufTensor] = {}
        self._part_of: dict[str, GgufPart] = {}
        for part in parts:
            for name in part.tensors:
                if name in self._part_of:
                    raise ModelError(
                        f"{part.path}: the tensor {ascii(name)[:80]} is in "
                        f"{self._part_of[name].path.name} too; download the model again"
                    )
                self._part_of[name] = part
            self.tensors |= part.tensors
        count = self.metadata.get("split.tensors.count", len(self._part_of))
        if count != len(self._part_of):
            raise ModelError(
                f"{self.path}: its parts have {len(self._part_of)} tensors instead of {count}; "
                "download the model again"
            )

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Map a file, and all further parts if it is the first of several.

        Raises `ModelError` if a part is missing or damaged, or `path` is a later part.
        """
        match = _PART.fullmatch(path.name)
        if match is None:
            return cls([GgufPart.open(path)])
        count = int(match["count"])

        def part(number: int) -> Path:
            return path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")

        if match["number"] != "00001":
            raise ModelError(f"{path} is a later part of a model; pass the first: {part(1).name}")
        if not 1 <= count <= _MAX_PARTS:
            raise ModelError(f"{path}: its name declares {count} parts; rename it")
        return cls([GgufPart.open(part(number)) for number in range(1, count + 1)])

    def bytes_of(self, name: str) -> "NDArray[np.uint8]":
        """Return the mapped bytes of a tensor, [num_bytes]."""
        return self._part_of[name].bytes_of(name)

    def path_of(self, name: str) -> Path:
        """Return the path of the part with a tensor."""
        return self._part_of[name].path
