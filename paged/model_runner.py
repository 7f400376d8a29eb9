"""ModelRunner: carries out a scheduled batch on a model and its cache."""

import torch
from torch import Tensor

from pagedrun.paged.forward_batch import ForwardBatch
from pagedrun.paged.kv_cache import KVCache
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.scheduled_batch import ScheduledBatch


class ModelRunner:
    """Moves the blocks that a batch wants moved, then computes it.

    `prefix_once` lets rows read the partitions that they share together.
    """

    def __init__(self, model: Decoder, cache: KVCache, *, prefix_once: bool = True) -> None:
        self._model = model
        self._cache = cache
        self._prefix_once = prefix_once

    @torch.inference_mode()
    def run(self, batch: ScheduledBatch) -> Tensor:
        """Return [num_logits, vocab_size]: a row for each chunk that samples, in order."""
        self._cache.transfer(batch.transfers)
        forward = ForwardBatch.build(batch, self._cache.block_size, prefix_once=self._prefix_once)
        return self._model.logits(forward, self._cache)
