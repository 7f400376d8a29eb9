"""EarlyStops: the tokens that would end an answer before it has its `min_tokens`."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.parcel import Place
from pagedrun.paged.scheduling.step_input import Draws


@dataclass(frozen=True, slots=True)
class EarlyStops:
    """num_missing: [num_rows] int64, tokens that each row gets before it may stop, 0 if it may.
    stop_ids: [num_rows, width] int64, what would stop it; the first ones again fill a row up.
    """

    num_missing: Tensor
    stop_ids: Tensor

    @classmethod
    def of(cls, draws: Draws, eos_token_ids: Seq[int], width: int = 0) -> "EarlyStops | None":
        """Return what is forbidden to some draws, on the host; None if nothing is.

        eos_token_ids: what stops any answer. width: at least so many stop ids a row.
        """
        stops = {draw: (*eos_token_ids, *own) for draw, own in draws.stop_token_ids.items()}
        width = max(width, cls.width(draws, eos_token_ids))
        if not any(stops.values()):
            return None
        missing = np.zeros(len(draws), dtype=np.int64)
        ids = np.zeros((len(draws), width), dtype=np.int64)
        for draw, own in stops.items():
            if own:
                missing[draw] = draws.num_missing[draw]
                ids[draw] = np.resize(own, width)
        return cls(torch.from_numpy(missing), torch.from_numpy(ids))

    @staticmethod
    def width(draws: Draws, eos_token_ids: Seq[int]) -> int:
        """Return the most tokens that are forbidden to a draw."""
        own = draws.stop_token_ids.values()
        return max((len(eos_token_ids) + len(each) for each in own), default=0)

    def placed(self, place: Place) -> "EarlyStops":
        """Return the same on a device, as `place` puts it there."""
        return EarlyStops(place(self.num_missing), place(self.stop_ids))

    def forbidden(self, logits: Tensor) -> Tensor:
        """Return logits [num_rows, vocab_size] in which rows that may not stop cannot."""
        is_early = (self.num_missing > 0).unsqueeze(1)
        values = logits.gather(1, self.stop_ids).masked_fill(is_early, -torch.inf)
        return logits.scatter(1, self.stop_ids, values)
