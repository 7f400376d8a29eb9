"""RecurrentSpec: what takes the place of attention in a layer with a state, as a value."""

from typing import Protocol

from pagedrun.paged.cache.cache_spec import StateSpec
from pagedrun.paged.models.network.part import Part


class RecurrentSpec(Protocol):
    """What the rest of the program asks of it, whatever it computes.

    It passes the tokens of a sequence one by one, in their order, each with what the one before
    left behind: no cut between two tokens changes a bit.
    """

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        ...

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point."""
        ...

    def state_spec(self, dtype: str) -> StateSpec:
        """Return what it keeps of each sequence, in a model of `dtype`, torch's name."""
        ...
