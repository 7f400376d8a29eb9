"""GraphShape: what a captured step has room for."""

from dataclasses import dataclass

# Rows for which steps are captured: a step is padded to the next of them. The steps at a run's end
# have ever fewer rows, and there a row too many costs a larger share, so small steps lie close.
_FINE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_COARSE = 64  # from there on, multiples of this
# The share of rows that may be holes before a smaller shape is taken.
_MOST_HOLES = 0.25
# Shorter rows do not get narrower block tables, which cost little: fewer shapes are more.
_LEAST_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class GraphShape:
    """Rows, blocks of a row, the partitions that all rows together read with others, and the tokens
    that are forbidden to a row which may not stop yet. filtered: rows may have top_k, top_p, min_p.
    """

    num_rows: int
    width: int
    num_shared_partitions: int
    num_stop_ids: int = 0
    filtered: bool = True

    def holds(self, other: "GraphShape") -> bool:
        """Return whether steps of another shape can be computed in this one."""
        return (
            other.num_rows <= self.num_rows
            and other.width <= self.width
            and other.num_stop_ids <= self.num_stop_ids
            and other.num_shared_partitions <= self.num_shared_partitions
            and other.filtered <= self.filtered
            # A captured step either reads prefixes or does not.
            and bool(other.num_shared_partitions) == bool(self.num_shared_partitions)
        )

    def wastes(self, other: "GraphShape") -> bool:
        """Return whether steps of another shape leave too many of the rows empty, or have no use
        for the launches of filters."""
        has_holes = other.num_rows < (1 - _MOST_HOLES) * self.num_rows
        return has_holes or (self.filtered and not other.filtered)

    @classmethod
    def holding(
        cls,
        num_rows: int,
        num_tokens: int,
        num_partitions: int,
        block_size: int,
        num_stop_ids: int = 0,
        *,
        filtered: bool = True,
    ) -> "GraphShape":
        """Return the smallest shape that is captured and holds rows of so many tokens each, of
        which so many partitions are read with others and so many tokens may be forbidden.
        """
        padded = next(
            (each for each in _FINE if each >= num_rows), -(-num_rows // _COARSE) * _COARSE
        )
        width = -(-max(num_tokens, _LEAST_TOKENS) // block_size)
        shared = padded * _power_of_two(num_partitions)
        return cls(padded, _power_of_two(width), shared, _power_of_two(num_stop_ids), filtered)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0
