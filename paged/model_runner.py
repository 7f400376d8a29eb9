"""ModelRunner: carries out a scheduled batch on a model and its cache."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedrun.paged.decode_graphs import DecodeGraphs
from pagedrun.paged.device import Device
from pagedrun.paged.forward_batch import DecodeInputs, ForwardBatch
from pagedrun.paged.in_flight import InFlight
from pagedrun.paged.kv_cache import KVCache
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.sampler import Sampler
from pagedrun.paged.scheduled_batch import ScheduledBatch
from pagedrun.paged.sequence import UNKNOWN_TOKEN


@dataclass(slots=True)
class AttentionReads:
    """Keys and values read by attention so far: tokens, times the layers that read them."""

    layer_tokens: int = 0
    layer_tokens_without_sharing: int = 0  # if every row had read its prefix for itself


class ModelRunner:
    """Moves the blocks that a batch wants moved, then computes it.

    `prefix_once` lets rows read the partitions that they share together. `graphs` take the steps
    that only decode; without them every step is computed kernel by kernel.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        sampler: Sampler,
        device: Device,
        *,
        prefix_once: bool = True,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._device = device
        self._prefix_once = prefix_once
        self._graphs = graphs
        self._layers_of_window = Counter(model.config.windows)
        self.reads = AttentionReads()

    @torch.inference_mode()
    def run(self, batch: ScheduledBatch, before: InFlight | None = None) -> Tensor:
        """Return the tokens sampled, [num_sampled] int64 on the device: one for each pending sample
        of each chunk that samples, in order.

        `before` is the step whose tokens are not known yet, if the batch goes on from them.
        """
        self._cache.transfer(batch.transfers)
        known = _known(batch, before)
        if self._graphs is not None and self._graphs.takes(batch):
            ids, read = self._graphs.run(batch, known)
            self._note_reads(read)
            return ids
        if self._graphs is not None:
            self._graphs.forget()
        forward = ForwardBatch.build(batch, self._cache.block_size, prefix_once=self._prefix_once)
        self._note_reads(forward)
        logits = self._model.logits(forward.place(self._device, known), self._cache)
        sampling = [chunk.sequence for chunk in batch.chunks if chunk.samples]
        return self._sampler.sample(logits, sampling)

    def _note_reads(self, read: ForwardBatch | DecodeInputs) -> None:
        for window, num_layers in self._layers_of_window.items():
            tokens, without_sharing = read.tokens_read(window)
            self.reads.layer_tokens += tokens * num_layers
            self.reads.layer_tokens_without_sharing += without_sharing * num_layers


def _known(batch: ScheduledBatch, before: InFlight | None) -> tuple[Tensor, list[int]] | None:
    """Return the tokens of the step before and where those are that the batch begins with."""
    unknown = [
        chunk.sequence
        for chunk in batch.chunks
        if chunk.samples and chunk.sequence.output_token_ids[-1:] == [UNKNOWN_TOKEN]
    ]
    if not unknown:
        return None
    assert before is not None, "a token is unknown that no step is computing"
    rows = before.rows()
    return before.ids, [rows[sequence] for sequence in unknown]
