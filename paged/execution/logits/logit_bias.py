"""LogitBias: the processor of logits that adds each request's `logit_bias`."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.asked import Asked
from pagedrun.paged.execution.logits.last_made import LastMade
from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.execution.logits.token_pairs import TokenPairs
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


class _Bias(NamedTuple):
    """token_ids: [num_ids] int64, each once. biases: [num_ids] float32."""

    token_ids: Int64s
    biases: NDArray[np.float32]

    @classmethod
    def of(cls, pairs: tuple[tuple[int, float], ...]) -> "_Bias":
        token_ids, biases = zip(*pairs, strict=True)
        return cls(np.array(token_ids, dtype=np.int64), np.array(biases, dtype=np.float32))


class LogitBias:
    """Makes tokens that a request names likelier, or less likely."""

    needs_newest_token = False
    can_be_captured = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._asked: Asked[_Bias] = Asked()
        self._biases: LastMade[tuple[tuple[int, float], ...], _Bias] = LastMade(_Bias.of)

    def begin(self, request: Request) -> None:
        """Keep the biases of the request."""
        self.end(request.index)
        if request.params.logit_bias:
            self._asked[request.index] = self._biases.of(request.params.logit_bias)

    def end(self, row: int) -> None:
        """Drop the biases of a request."""
        self._asked.pop(row)

    def applies(self, draws: Draws) -> bool:
        """Return whether some request has a bias."""
        return self._asked.is_asked(draws.row)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Do nothing: biases are the same all along."""

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Add the biases."""
        assert batch.draws is not None
        asked = list(self._asked.found(batch.draws.row))
        pairs = TokenPairs.of(((place, bias.token_ids) for place, bias in asked), self._device)
        logits = logits.float()
        biases = np.concatenate([bias.biases for _, bias in asked])
        logits[pairs.rows, pairs.token_ids] += self._device.place(torch.from_numpy(biases))
        return logits
