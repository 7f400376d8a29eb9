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
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.known_tokens import KnownTokens
from pagedrun.paged.execution.logits.early_stops import EarlyStops
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from pagedrun.paged.models.model import Model
from pagedrun.paged.scheduling.step_input import StepInput


class DecodeGraphs:
    """Captures a step when one of its shape first occurs; all of them share scratch memory.

    With `capture` off the same steps are computed kernel by kernel: what is tested without a GPU.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        sampler: Sampler,
        device: Device,
        *,
        shared_prefix_attention: bool,
        capture: bool,
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._device = device
        self._sharing = PrefixSharing(share=shared_prefix_attention)
        self._capture = capture
        self._memory = device.graph_memory() if capture else None
        self._graphs: dict[GraphShape, DecodeGraph] = {}
        self._last: _Loaded | None = None

    @property
    def shapes(self) -> list[GraphShape]:
        """What was captured so far."""
        return list(self._graphs)

    def takes(self, step: StepInput) -> bool:
        """Return whether every chunk is one generated token of a sequence, to be followed by one
        that is chosen in a way that can be captured."""
        return bool(
            (step.ends == step.starts + 1).all()
            and step.samples.all()
            and (step.store_from == step.starts).all()
            and (step.starts >= step.num_prompt_tokens).all()
            and self._sampler.can_capture(step.draws)
        )

    def run(self, step: StepInput, known: KnownTokens | None) -> tuple[Tensor, DecodeInputs]:
        """Return the sampled tokens, [num_chunks] int64 on the device, and what attention read.

        `known` are tokens of the step before that the host has not seen: see
        `DecodeBuffers.load`. The tokens returned are overwritten when the same rows go on.
        """
        last = self._last
        is_new = last is None or bool(step.transfers) or not last.goes_on_with(step)
        if last is None or is_new:
            self._last = last = self._load(step, known)
        else:
            last.grow(step)
        lens = torch.from_numpy(step.ends.astype(np.int32))
        rows = torch.arange(len(lens), dtype=torch.int32)
        ids = last.graph.run(last.groups, is_new=is_new)
        return ids[: len(lens)], DecodeInputs(rows, lens, last.groups)

    def forget(self) -> None:
        """Say that a step of another kind comes between."""
        self._last = None

    def release(self) -> None:
        """Let go of all that was captured, and of the memory that it takes."""
        self._last = None
        self._graphs.clear()

    def _load(self, step: StepInput, known: KnownTokens | None) -> "_Loaded":
        size = self._cache.block_size
        partitions = step.num_read_once_tokens // PARTITION_TOKENS
        partitions *= any(spec.reads_together for spec in self._cache.specs)
        longest, most_partitions = int(step.max_num_tokens.max()), int(partitions.max())
        num_stop_ids = EarlyStops.width(step.draws, self._sampler.eos_token_ids)
        shape = GraphShape.holding(step.num_chunks, longest, most_partitions, size, num_stop_ids)
        graph = self._graphs.get(shape)
        if graph is None:
            graph = DecodeGraph(shape, self._model, self._cache, self._sampler, self._device)
            if self._capture:
                graph.capture(self._memory)
            self._graphs[shape] = graph
        eos_token_ids = self._sampler.eos_token_ids
        stops = EarlyStops.of(step.draws, eos_token_ids, shape.num_stop_ids)
        graph.buffers.load(step, known, stops)
        tables = np.zeros((len(step.block_tables), shape.num_rows, shape.width), dtype=np.int32)
        _fill(tables, step)
        graph.buffers.load_tables(tables)
        padded = np.zeros(shape.num_rows, dtype=np.int32)
        padded[: step.num_chunks] = partitions
        rows = np.arange(shape.num_rows, dtype=np.int32)
        groups = self._sharing.groups(tables[0], rows, padded, size)
        return _Loaded(graph, step, groups, tables)


class _Loaded:
    """A graph whose buffers hold the state of some sequences, and goes on by itself."""

    def __init__(
        self,
        graph: DecodeGraph,
        step: StepInput,
        groups: PrefixGroups | None,
        tables: NDArray[np.int32],
    ) -> None:
        self.graph = graph
        self.groups = groups
        self._uids = step.uids
        self._tables = tables
        self._num_blocks = int(step.num_blocks.sum())

    def goes_on_with(self, step: StepInput) -> bool:
        """Return whether a step is the next token of the same sequences, in the same order."""
        return np.array_equal(self._uids, step.uids)

    def grow(self, step: StepInput) -> None:
        """Give the device the blocks that the sequences were given since the last step.

        A table only grows at its end: a step that moves blocks is loaded anew.
        """
        num_blocks = int(step.num_blocks.sum())
        if num_blocks > self._num_blocks:
            self._num_blocks = num_blocks
            _fill(self._tables, step)
            self.graph.buffers.load_tables(self._tables)


def _fill(tables: NDArray[np.int32], step: StepInput) -> None:
    """Put a step's block tables into wider ones. tables: [num_groups, num_rows, width]."""
    for target, source in zip(tables, step.block_tables, strict=True):
        target[: step.num_chunks, : source.shape[1]] = source
