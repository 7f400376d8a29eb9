"""TokenPairs: single logits of a batch, named by their row and their token."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.scheduling.sequence_table import Int64s


class TokenPairs(NamedTuple):
    """rows, token_ids: [num_pairs] int64 on the device, to index logits with both."""

    rows: Tensor
    token_ids: Tensor

    @classmethod
    def of(cls, lists: Iterable[tuple[int, Int64s]], device: Device) -> "TokenPairs":
        """Return the pairs of rows of logits with lists of token ids, one list after the other."""
        rows, token_ids = zip(*lists, strict=True)
        lengths = [len(each) for each in token_ids]
        return cls(
            _placed(np.repeat(np.array(rows, dtype=np.int64), lengths), device),
            _placed(np.concatenate(token_ids), device),
        )


def _placed(array: NDArray[np.int64], device: Device) -> Tensor:
    return device.place(torch.from_numpy(array))
