"""InFlight: a step that was launched and whose tokens the host has not seen yet."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.host_copy import HostCopy
from pagedrun.paged.scheduling.sequence_table import Int64s, SequenceTable


@dataclass(frozen=True, slots=True)
class InFlight:
    """The tokens that a step samples, and whose they are.

    ids: [num_sampled] int64 on the device, or `NO_TOKEN` where the logits hold no choice. copy: the
    same on their way to the host. places, uids: [num_sampled] int64, the sequence that each is of.
    positions: [num_sampled] int64, where it goes among the sequence's generated tokens.
    """

    ids: Tensor
    copy: HostCopy
    places: Int64s
    uids: Int64s
    positions: Int64s

    @classmethod
    def launched(
        cls, ids: Tensor, table: SequenceTable, grown: Int64s, device: Device
    ) -> "InFlight":
        """Return the step that has just made the sequences at `grown` one token longer."""
        positions = table.num_output_tokens[grown] - 1
        return cls(ids, device.to_host(ids), grown, table.uid[grown], positions)

    def wait(self) -> Int64s:
        """Return the tokens, [num_sampled] int64, when they are there."""
        ids: Int64s = self.copy.wait().numpy()
        return ids

    def is_live(self, table: SequenceTable) -> NDArray[np.bool_]:
        """Return of which tokens the sequence is still there, and not ended by one before."""
        same = table.uid[self.places] == self.uids
        live: NDArray[np.bool_] = same & (self.positions < table.num_output_tokens[self.places])
        return live
