"""NeighbourPairs: heads whose rotations turn neighbouring elements."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NeighbourPairs:
    """In each head of `head_dim` the elements 0 and 1, 2 and 3, … below `rotary_dim` turn together.

    Kernels turn elements i and i + rotary_dim / 2. Scores are sums over a head's elements, so
    queries and keys may have these in another order, as long as it is the same in both.
    """

    head_dim: int
    rotary_dim: int

    def rows(self, num_rows: int) -> list[int]:
        """Return the order of a projection's rows in which kernels turn what neighbours were."""
        first, second = range(0, self.rotary_dim, 2), range(1, self.rotary_dim, 2)
        order = [*first, *second, *range(self.rotary_dim, self.head_dim)]
        return [head + row for head in range(0, num_rows, self.head_dim) for row in order]
