"""KnownTokens: the tokens that a step goes on from, where only the device has seen them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.in_flight import InFlight
from pagedrun.paged.scheduling.step_input import StepInput


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """ids: int64 on the device, the tokens of the step before. sources: [num_unknown] int64, which
    of them the unknown tokens of this step are, in its order."""

    ids: Tensor
    sources: NDArray[np.int64]

    @classmethod
    def of(cls, step: StepInput, before: InFlight | None) -> "KnownTokens | None":
        """Return those of the step `before` that a step goes on from, None if there are none."""
        if not len(step.sources):
            return None
        assert before is not None, "a token is unknown that no step is computing"
        return cls(before.ids, before.places_of(step.sources))

    def chosen(self, sources: Tensor) -> Tensor:
        """Return the unknown tokens, [num_unknown] int64; any token where there was no choice.

        sources: those of this object, on the device.
        """
        return self.ids.index_select(0, sources).clamp(min=0)
