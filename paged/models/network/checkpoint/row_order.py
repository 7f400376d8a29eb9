"""RowOrder: in which order kernels want the outputs of a projection."""

from typing import Protocol


class RowOrder(Protocol):
    """A value, without torch: rows of matrices are brought into it while they are read."""

    def rows(self, num_rows: int) -> list[int]:
        """Return which of a tensor's `num_rows` rows is the first, the second, …"""
        ...
