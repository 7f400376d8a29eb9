"""TileTable: the tiles that a sweep found to be the fastest on a chip, in place of the rules' own.

The rules in `decode_attention`, `prefix_attention` and `prefill_attention` give a tile for every
chip; `benchmarks/tile_sweep.py` measures those that registers and shared memory allow, and writes
what it found into `measured_tiles.py`. Tiles of one op that must give a row the same bytes, such as
those for few and for many rows, are one entry, chosen together.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from pagedrun.kernels.gpu.measured_tiles import MEASURED

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileTable:
    """Tiles of one chip: for each op, entries by name; what an entry means is the op's."""

    entries: Mapping[str, Mapping[str, tuple[Numbers, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: str, arch: int | str) -> "TileTable":
        """Return what was measured on a chip, an empty table where nothing was."""
        return cls(MEASURED.get(chip_name(backend, arch), {}))

    @property
    def digest(self) -> str:
        """8 hexadecimal digits that name the entries, none of an empty table."""
        if not any(self.entries.values()):
            return ""
        return hashlib.sha256(repr(sorted(self._flat())).encode()).hexdigest()[:8]

    def _flat(self) -> Iterator[tuple[str, str, tuple[Numbers, ...]]]:
        for op, tiles in self.entries.items():
            yield from ((op, name, entry) for name, entry in tiles.items())

    def find(self, op: str, name: str) -> tuple[Numbers, ...] | None:
        """Return the tiles of an entry, None where the rule applies."""
        return self.entries.get(op, {}).get(name)


def chip_name(backend: str, arch: int | str) -> str:
    """Return what the table calls a chip: sm_90, gfx942."""
    return str(arch) if backend == "hip" else f"sm_{arch}"


def entry_name(*parts: int | torch.dtype) -> str:
    """Return the name of an entry, of sizes and dtypes."""
    return "-".join(str(part).removeprefix("torch.") for part in parts)
