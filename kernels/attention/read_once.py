"""ReadOnce: from where on reading a shared prefix once for all of its rows pays."""

from dataclasses import dataclass

MOST_ROWS = 128  # more rows than these are never asked for


@dataclass(frozen=True, slots=True)
class ReadOnce:
    """A prefix is read once if `min_rows` rows share it, and rows times tokens are `min_work`.

    Below, each row's own reading takes less time. A constant of the kernels, never measured at
    run time: rows read either way differ in their last bits, so it decides bytes.
    """

    min_rows: int
    min_work: int

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows that are tried, ascending."""
        counts = []
        rows = self.min_rows
        while rows <= MOST_ROWS:
            counts.append(rows)
            rows *= 2
        return tuple(counts)


# For engines that are compared with those that do.
NEVER = ReadOnce(MOST_ROWS + 1, 0)
# Not measured on a GPU yet; on CPUs before the products of our own it was level here.
ON_GPU = ReadOnce(16, 16 * 1024)
