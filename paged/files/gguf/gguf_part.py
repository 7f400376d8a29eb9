"""GgufPart: one file of a GGUF model, and where its tensors are.

The package `gguf` reads such files too, but believes every length in them: one that is a lie keeps
it busy for ever. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.paged.files.gguf.block_type import BLOCK_TYPES, BlockType
from pagedrun.paged.files.gguf.cursor import Cursor
from pagedrun.paged.files.json_object import refuse_lfs_pointer
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

if TYPE_CHECKING:  # the command line's help comes without numpy
    import numpy as np
    from numpy.typing import NDArray

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_VALUES = 2**48
# The least that a value of the metadata, and a tensor's place, take.
_VALUE_BYTES, _PLACE_BYTES = 13, 32


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
    """A file, mapped into memory; built by `open`.

    `metadata` has what it says of the model, `tensors` where they are, by its own names.
    """

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
        num_tensors = cursor.count("tensors", _PLACE_BYTES)
        num_values = cursor.count("values", _VALUE_BYTES)
        self.metadata: dict[str, JSONValue] = {}
        for _ in range(num_values):
            name = cursor.string()
            if name in self.metadata:
                raise cursor.corrupt(f"it contains {ascii(name)[:80]} twice")
            self.metadata[name] = cursor.value()
        places = [_place(cursor) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            raise cursor.corrupt("general.alignment is not a valid size")
        self._header_bytes = cursor.position
        start = -(-cursor.position // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in places:
            tensor = GgufTensor(shape, kind, start + offset)
            if name in self.tensors:
                raise cursor.corrupt(f"it contains the tensor {ascii(name)[:80]} twice")
            if tensor.offset + tensor.num_bytes > len(memory):
                raise cursor.corrupt(f"it ends before the end of the tensor {ascii(name)[:80]}")
            self.tensors[name] = tensor

    @classmethod
    def open(cls, path: Path) -> "GgufPart":
        """Map a file and read its header. Raises `ModelError` if it is no GGUF file, or damaged."""
        if not path.is_file():
            raise ModelError(f"{path} does not exist; download the model again")
        refuse_lfs_pointer(path)
        try:
            with path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise ModelError(f"{path} cannot be read ({error}); download it again") from error
        return cls(path, memory)

    @property
    def header(self) -> bytes:
        """Metadata and places of tensors, as they are in the file."""
        return self._memory[: self._header_bytes]

    def bytes_of(self, name: str) -> "NDArray[np.uint8]":
        """Return the bytes of a tensor, [num_bytes], mapped; the file itself is never written."""
        import numpy as np

        tensor = self.tensors[name]
        return np.frombuffer(self._memory, np.uint8, tensor.num_bytes, tensor.offset)


def _place(cursor: Cursor) -> tuple[str, tuple[int, ...], BlockType, int]:
    """Return a tensor's name, shape, type, and place behind the header."""
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
