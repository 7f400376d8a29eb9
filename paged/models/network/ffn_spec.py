"""FfnSpec: the feed-forward part of a layer, as a value."""

from collections.abc import Callable
from typing import Protocol

from pagedrun.paged.models.network.part import Part


class FfnSpec(Protocol):
    """What the rest of the program asks of a feed-forward part: one network, or a mixture."""

    @property
    def intermediate_size(self) -> int:
        """Inner width that each token passes."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        ...

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point."""
        ...

    def stored_as(self, is_stored: Callable[[str], bool]) -> "FfnSpec":
        """Return it as a checkpoint holds it, of which `is_stored` says which names it has."""
        ...
