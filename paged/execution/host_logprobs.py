"""HostLogprobs: how likely tokens are, on the way to the host."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.token_logprobs import TokenLogprobs
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.host_copy import HostCopy


class FoundLogprob(NamedTuple):
    """How likely a token is, and the likeliest ones at its place with theirs."""

    logprob: float
    rank: int
    top: list[tuple[int, float]]

    @property
    def is_number(self) -> bool:
        """Whether its logits were a distribution."""
        return self.logprob == self.logprob


@dataclass(frozen=True, slots=True)
class HostLogprobs:
    """The parts of a `TokenLogprobs`."""

    parts: tuple[HostCopy, ...]

    @classmethod
    def of(cls, found: TokenLogprobs | None, device: Device) -> "HostLogprobs | None":
        """Begin to copy; None stays None."""
        return None if found is None else cls(tuple(map(device.to_host, found)))

    def top(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the likeliest tokens and their log-probabilities, [num_tokens, num_top] each."""
        _, _, top_ids, top_logprobs = (part.wait().numpy() for part in self.parts)
        return top_ids, top_logprobs

    def wait(self, chosen: NDArray[np.bool_] | None = None) -> Iterator[FoundLogprob]:
        """Yield them in order when they are there, each number as its shortest decimal has it.

        chosen: [num_tokens], of which ones; None means all.
        """
        parts = [part.wait().numpy() for part in self.parts]
        if chosen is not None:
            parts = [part[chosen] for part in parts]
        logprobs, ranks, top_ids, top_logprobs = parts
        found = zip(
            _shortest(logprobs), ranks.tolist(), top_ids.tolist(), top_logprobs, strict=True
        )
        for logprob, rank, ids, values in found:
            yield FoundLogprob(logprob, rank, list(zip(ids, _shortest(values), strict=True)))


def _shortest(values: NDArray[np.float32]) -> list[float]:
    """Return the float64 with fewest digits that each of these is the nearest float32 of."""
    return [float(str(value)) for value in values]
