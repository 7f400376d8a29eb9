"""GgufFile: a whole GGUF model, in one file or several parts."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.paged.files.gguf.gguf_part import GgufPart, GgufTensor
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

if TYPE_CHECKING:  # the command line's help comes without numpy
    import numpy as np
    from numpy.typing import NDArray

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 999


class GgufFile:
    """Metadata of the first part, tensors of all parts; built by `open`."""

    def __init__(self, parts: list[GgufPart]) -> None:
        first = parts[0]
        self.path = first.path
        self.metadata: dict[str, JSONValue] = first.metadata
        self.parts = tuple(parts)
        self._part_of: dict[str, GgufPart] = {}
        for part in parts:
            for name in part.tensors:
                if name in self._part_of:
                    raise ModelError(
                        f"{part.path}: the tensor {ascii(name)[:80]} is in "
                        f"{self._part_of[name].path.name} too; download the model again"
                    )
                self._part_of[name] = part
        count = self.metadata.get("split.tensors.count", len(self._part_of))
        if count != len(self._part_of):
            raise ModelError(
                f"{self.path}: its parts have {len(self._part_of)} tensors instead of {count}; "
                "download the model again"
            )

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Map a file, and the parts after it where it is the first of several.

        Raises `ModelError` where one is missing or damaged, or `path` is not the first.
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

    @property
    def tensors(self) -> dict[str, GgufTensor]:
        """Shape, type and place of each tensor, by the file's own names."""
        return {name: part.tensors[name] for name, part in self._part_of.items()}

    def bytes_of(self, name: str) -> "NDArray[np.uint8]":
        """Return the bytes of a tensor, [num_bytes], mapped."""
        return self._part_of[name].bytes_of(name)

    def path_of(self, name: str) -> Path:
        """Return the part that a tensor is in."""
        return self._part_of[name].path
