"""InFlight: a step that was launched and whose tokens the host has not seen yet."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.host_copy import HostCopy
from pagedrun.paged.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class InFlight:
    """The tokens that a step samples, and whose they are.

    ids: [num_sampled] int64 on the device, or `NO_TOKEN` where the logits hold no choice. copy: the
    same on their way to the host. sequences: whose token each is. places: [num_sampled], where it
    goes in the sequence's `output_token_ids`.
    """

    ids: Tensor
    copy: HostCopy
    sequences: Seq[Sequence]
    places: Seq[int]

    @classmethod
    def launched(cls, ids: Tensor, grown: Seq[Sequence], device: Device) -> "InFlight":
        """Return the step that has just made `grown` one token longer."""
        places = [len(sequence.output_token_ids) - 1 for sequence in grown]
        return cls(ids, device.to_host(ids), grown, places)

    def wait(self) -> list[int]:
        """Return the tokens, when they are there."""
        ids: list[int] = self.copy.wait().tolist()
        return ids

    def rows(self) -> dict[Sequence, int]:
        """Return where each sequence's token is in `ids`."""
        return {sequence: row for row, sequence in enumerate(self.sequences)}
