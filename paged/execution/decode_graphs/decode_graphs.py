"""DecodeGraphs: steps that only decode, captured once for a number of rows and then replayed.

Launching a network's kernels one by one takes the host longer than a small model's step takes the
device. A captured step is one launch, in which attention, sampling and the way to the next step
are included; while the same rows go on, the host has nothing to tell the device but new blocks.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.decode_graphs.decode_graph import DecodeGraph, GraphShape
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.prefix_sharing import group_prefixes
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.scheduling.scheduled_batch import ScheduledBatch
from pagedrun.paged.scheduling.sequence import Sequence


class DecodeGraphs:
    """Captures a step when one of its shape first occurs; all of them share scratch memory.

    With `capture` off the same steps are computed kernel by kernel: what is tested without a GPU.
    """

    def __init__(
        self, model: Decoder, cache: KVCache, device: Device, *, prefix_once: bool, capture: bool
    ) -> None:
        self._model = model
        self._cache = cache
        self._device = device
        self._prefix_once = prefix_once
        self._pool = torch.cuda.graph_pool_handle() if capture else None
        self._graphs: dict[GraphShape, DecodeGraph] = {}
        self._last: _Loaded | None = None

    @property
    def shapes(self) -> list[GraphShape]:
        """What was captured so far."""
        return list(self._graphs)

    def takes(self, batch: ScheduledBatch) -> bool:
        """Return whether every chunk is one generated token of a sequence, to be followed by one.

        A sequence that may not stop yet needs its logits changed, which a captured step does not.
        """
        return all(
            chunk.num_tokens == 1
            and chunk.samples
            and chunk.store_from == chunk.start >= chunk.sequence.num_prompt_tokens
            and len(chunk.sequence.output_token_ids) >= chunk.sequence.request.params.min_tokens
            for chunk in batch.chunks
        )

    def run(
        self, batch: ScheduledBatch, known: tuple[Tensor, list[int]] | None
    ) -> tuple[Tensor, DecodeInputs]:
        """Return the sampled tokens, [num_chunks] int64 on the device, and what attention read.

        `known` are tokens of the step before that the host has not seen: see
        `DecodeBuffers.load`. The tokens returned are overwritten when the same rows go on.
        """
        last = self._last
        is_new = last is None or bool(batch.transfers) or not last.goes_on_with(batch)
        if last is None or is_new:
            self._last = last = self._load(batch, known)
        else:
            last.grow()
        lens = torch.tensor([chunk.end for chunk in batch.chunks], dtype=torch.int32)
        rows = torch.arange(len(lens), dtype=torch.int32)
        ids = last.graph.run(last.groups, is_new=is_new)
        return ids[: len(lens)], DecodeInputs(rows, lens, last.groups)

    def forget(self) -> None:
        """Say that a step of another kind comes between."""
        self._last = None

    def _load(self, batch: ScheduledBatch, known: tuple[Tensor, list[int]] | None) -> "_Loaded":
        size = self._cache.block_size
        sequences = [chunk.sequence for chunk in batch.chunks]
        partitions = [each.num_read_once_tokens // PARTITION_TOKENS for each in sequences]
        longest = max(each.max_num_tokens for each in sequences)
        shape = GraphShape.holding(len(sequences), longest, max(partitions), size)
        graph = self._graphs.get(shape)
        if graph is None:
            graph = DecodeGraph(shape, self._model, self._cache, self._device)
            if self._pool is not None:
                graph.capture(self._pool)
            self._graphs[shape] = graph
        graph.buffers.load(batch.chunks, known)
        tables = np.zeros((shape.num_rows, shape.width), dtype=np.int32)
        for row, sequence in enumerate(sequences):
            tables[row, : len(sequence.block_table)] = sequence.block_table
        graph.buffers.load_tables(tables)
        groups = group_prefixes(
            tables,
            np.arange(shape.num_rows, dtype=np.int32),
            np.array(partitions + [0] * (shape.num_rows - len(sequences)), dtype=np.int32),
            size,
            share=self._prefix_once,
        )
        return _Loaded(graph, sequences, groups, tables)


class _Loaded:
    """A graph whose buffers hold the state of some sequences, and goes on by itself."""

    def __init__(
        self,
        graph: DecodeGraph,
        sequences: list[Sequence],
        groups: PrefixGroups | None,
        tables: NDArray[np.int32],
    ) -> None:
        self.graph = graph
        self.groups = groups
        self._sequences = sequences
        self._tables = tables
        self._lengths = [len(each.block_table) for each in sequences]

    def goes_on_with(self, batch: ScheduledBatch) -> bool:
        """Return whether a batch is the next token of the same sequences, in the same order."""
        return self._sequences == [chunk.sequence for chunk in batch.chunks]

    def grow(self) -> None:
        """Give the device the blocks that the sequences were given since the last step."""
        grown = False
        for row, sequence in enumerate(self._sequences):
            table, length = sequence.block_table, self._lengths[row]
            if len(table) > length:
                self._tables[row, length : len(table)] = table[length:]
                self._lengths[row] = len(table)
                grown = True
        if grown:
            self.graph.buffers.load_tables(self._tables)
