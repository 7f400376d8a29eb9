"""WindowCopies: blocks on their way to the store that a window leaves behind before the others."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pagedrun.paged.cache.kv_memory import KVMemory


class _Copied(NamedTuple):
    """Blocks `[first, end)` of a row, on the host, part by part."""

    first: int
    end: int
    parts: list[list[Tensor]]


class WindowCopies:
    """Copies of a group's blocks, row by row, as they are filled."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._rows: dict[int, _Copied] = {}

    def note(self, row: int, start: int, end: int, num_tokens: int, table: Sequence[int]) -> None:
        """Copy what a step fills of a row with its chunk `[start, end)`, up to `num_tokens`.

        table: the row's, while it holds the blocks.
        """
        size = self._memory.block_size
        known = self._rows.get(row)
        if known is None or start // size > known.end:
            known = _Copied(start // size, start // size, [])
        filled = -(-num_tokens // size) if end >= num_tokens else end // size
        if filled > known.end:
            known.parts.append(self._memory.read(table[known.end : filled]))
            self._rows[row] = known._replace(end=filled)

    def forget(self, row: int) -> None:
        """Drop what was copied of a row."""
        self._rows.pop(row, None)

    def of(self, row: int, first: int) -> list[Tensor] | None:
        """Return what was copied of a row from block `first` on, as `KVMemory.read` does; None if
        it was not from there on."""
        copied = self._rows.get(row)
        if copied is None or copied.first > first:
            return None
        wholes = [torch.cat(parts, dim=2) for parts in zip(*copied.parts, strict=True)]
        return [whole[:, :, first - copied.first :] for whole in wholes]
