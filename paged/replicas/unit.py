"""Unit: rows of a window that are handed to a replica together."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of one window, in its run order.

    number: rises in the order in which units are made. window: the window's number. rows: by their
    indices in the input. places: where each is in the window's run order. is_suspect: whether a
    replica died that had these rows; such a unit with a single row runs alone. is_copy: whether
    another replica has the rows as well.
    """

    number: int
    window: int
    rows: Seq[int]
    places: Seq[int]
    is_suspect: bool = False
    is_copy: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def runs_alone(self) -> bool:
        """Whether nothing may run beside it, so that it is known what a death was due to."""
        return self.is_suspect and len(self.rows) == 1
