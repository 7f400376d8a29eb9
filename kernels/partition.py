"""Partitions of keys and values, and the threshold for reading shared ones once.

A context is cut into partitions of `PARTITION_TOKENS`, counted from token 0 whatever the batch,
the chunk or the block size. Each partition gives a partial result (max, sum, output) and the
partials merge in ascending order, so a row's bytes do not depend on the rest of the batch.
"""

from dataclasses import dataclass

PARTITION_TOKENS = 128

MOST_ROWS = 128  # largest threshold


@dataclass(frozen=True, slots=True)
class ReadOnce:
    """Smallest number of rows, and of rows times tokens, for reading a shared prefix once.

    Below, each row's own reading takes less time. A constant of the kernels, never measured at
    run time: rows read either way differ in their last bits, so it decides bytes.
    """

    min_rows: int
    min_work: int

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Numbers of rows to try, ascending."""
        counts = []
        rows = self.min_rows
        while rows <= MOST_ROWS:
            counts.append(rows)
            rows *= 2
        return tuple(counts)


# The control of benchmarks.
NEVER = ReadOnce(MOST_ROWS + 1, 0)
# Not measured on a GPU yet; the break-even point of CPUs with oneDNN products.
ON_GPU = ReadOnce(16, 16 * 1024)
