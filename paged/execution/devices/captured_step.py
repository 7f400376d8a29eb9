"""CapturedStep: work recorded once on a device, and done again by a single launch."""

from typing import Protocol

from torch import Tensor


class CapturedStep(Protocol):
    """What `Device.capture` returns."""

    @property
    def ids(self) -> Tensor:
        """What the step returns, at the address where each replay writes it."""

    def replay(self) -> None:
        """Do it again, in stream order, with what its inputs hold by then."""
