"""AllowedTokens: the processor of logits that keeps an answer to its `allowed_token_ids`."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.asked import Asked
from pagedrun.paged.execution.logits.last_made import LastMade
from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.execution.logits.token_pairs import TokenPairs
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


class AllowedTokens:
    """Forbids every token but those that a request allows."""

    needs_newest_token = False
    can_be_captured = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._asked: Asked[Int64s] = Asked()
        self._ids: LastMade[tuple[int, ...], Int64s] = LastMade(_ids_of)

    def begin(self, request: Request) -> None:
        """Keep the ids that the request allows."""
        self.end(request.index)
        if request.params.allowed_token_ids is not None:
            self._asked[request.index] = self._ids.of(request.params.allowed_token_ids)

    def end(self, row: int) -> None:
        """Drop the ids that a request allows."""
        self._asked.pop(row)

    def applies(self, draws: Draws) -> bool:
        """Return whether some request does not allow all."""
        return self._asked.is_asked(draws.row)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Do nothing: the same tokens are allowed all along."""

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Write minus infinity where a token is not allowed."""
        assert batch.draws is not None
        asked = list(self._asked.found(batch.draws.row))
        pairs = TokenPairs.of(asked, self._device)
        allowed = logits[pairs.rows, pairs.token_ids]
        rows = self._device.place(torch.tensor([row for row, _ in asked]))
        logits.index_fill_(0, rows, -torch.inf)
        logits[pairs.rows, pairs.token_ids] = allowed
        return logits


def _ids_of(token_ids: tuple[int, ...]) -> Int64s:
    return np.array(token_ids, dtype=np.int64)
