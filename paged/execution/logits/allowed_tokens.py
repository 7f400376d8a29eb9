"""AllowedTokens: the processor of logits that keeps an answer to its `allowed_token_ids`."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.asked import Asked
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

    def begin(self, request: Request) -> None:
        """Keep the ids that the request allows."""
        self.end(request.index)
        if request.params.allowed_token_ids is not None:
            self._asked[request.index] = np.array(request.params.allowed_token_ids, dtype=np.int64)

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
        pairs = TokenPairs.of(self._asked.found(batch.draws.row), self._device)
        allowed = logits[pairs.rows, pairs.token_ids]
        logits[pairs.rows] = -torch.inf
        logits[pairs.rows, pairs.token_ids] = allowed
        return logits
