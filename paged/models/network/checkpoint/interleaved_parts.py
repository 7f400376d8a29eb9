"""InterleavedParts: a projection whose outputs are groups of several parts."""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class InterleavedParts:
    """In each group `sizes` say how many outputs in a row belong to each part.

    Kernels read all of a part in one piece, group by group, the parts in `order`.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def rows(self, num_rows: int) -> list[int]:
        """Return the order of a projection's rows in which each part is in one piece."""
        starts, size = [0, *accumulate(self.sizes)], sum(self.sizes)
        return [
            group + starts[part] + row
            for part in self.order
            for group in range(0, num_rows, size)
            for row in range(self.sizes[part])
        ]
