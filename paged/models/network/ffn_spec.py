"""FfnSpec: the feed-forward part of a layer, as a value."""

from typing import Protocol

from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors
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

    def stored_as(self, stored: StoredTensors) -> "FfnSpec":
        """Return it as a checkpoint holds it, whose tensors are those `stored`."""
        ...
