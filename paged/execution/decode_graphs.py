"""Decode graphs: captured steps of generated tokens, replayed with a single launch.

Launching a network's kernels one by one takes the host longer than a small model's step takes
the device. A captured step is one launch that includes attention, sampling and the inputs of
the next step; the host sends the device only the rows that changed their sequence and the new
blocks. A step of a shape is captured when the shape occurs for the second time. Prompt tokens
of the same step are computed beside it, kernel by kernel.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, PrefixGroups
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference.sampling import GREEDY_BELOW
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.decode_buffers import DecodeBuffers, GraphRows, GraphShape, RowUpdate
from pagedrun.paged.execution.device import CapturedStep, Device
from pagedrun.paged.execution.forward_batch import attention_shapes
from pagedrun.paged.execution.logits.logits_processor import EarlyStops
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.prefix_sharing import PrefixSharing, without_rows
from pagedrun.paged.execution.step_result import InFlight, KnownTokens
from pagedrun.paged.models.model import Model
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import StepInput


@dataclass(frozen=True, slots=True)
class Replayed:
    """ids: the sampled tokens on the device, which the next run overwrites. rows: [num_chunks]
    int64, which of them is of which chunk that was replayed. read: what attention has read there.
    rest: the chunks that were not replayed, None if there are none."""

    ids: Tensor
    rows: Int64s
    read: DecodeInputs
    rest: StepInput | None


class DecodeGraph:
    """A step of a given shape, the buffers that it reads and advances, and who is in them.

    Until `capture` is called, `run` computes it kernel by kernel.
    """

    def __init__(
        self, shape: GraphShape, model: Model, cache: KVCache, sampler: Sampler, device: Device
    ) -> None:
        self.shape = shape
        self.buffers = DecodeBuffers.allocate(
            shape.num_rows, shape.width, shape.num_stop_ids, len(cache.groups), device
        )
        self._seats = GraphRows(shape, len(cache.groups), cache.block_size)
        self._model = model
        self._sampler = sampler
        self._cache = cache
        self._device = device
        self._reads_together = any(spec.reads_together for spec in cache.specs)
        rooms = [shape.num_shared_partitions * spec.reads_together for spec in cache.specs]
        self._attentions = tuple(
            device.kernels.prepare(inputs, attention_shape, room=room)
            for inputs, attention_shape, room in zip(
                self.buffers.attentions, attention_shapes(model, cache), rooms, strict=True
            )
        )
        self._captured: CapturedStep | None = None
        self._groups: PrefixGroups | None = None

    def capture(self, memory: object) -> None:
        """Record the step on the device, with scratch memory to share with other graphs.

        It is computed once for that: the buffers must hold no rows yet.
        """
        self._captured = self._device.capture(self._step, memory)

    def forget(self) -> None:
        """Say that what is in the buffers is not what its sequences come to by other steps."""
        self._seats.forget()

    def run(
        self, step: StepInput, known: KnownTokens | None, sharing: PrefixSharing
    ) -> tuple[Tensor, Int64s, PrefixGroups | None]:
        """Compute a step that only decodes, as its shape has room for.

        `known` are the tokens of the step before that the host has not seen, None if there are
        none. Returns the sampled tokens, [num_rows] int64 on the device, which the next run
        overwrites; the row of each chunk, [num_chunks] int64; and who has read what together.
        """
        eos_token_ids: Seq[int] = self._sampler.eos_token_ids
        sources = step.sources if known is None else known.sources
        rows, update = self._seats.seat(
            replace(step, sources=sources), eos_token_ids, reads_together=self._reads_together
        )
        self.buffers.update(update, None if known is None else known.ids)
        if self.shape.num_shared_partitions:
            self._group(update, sharing)
        self._seats.advance(rows)
        if self._captured is None:
            return self._step(), rows, self._groups
        self._captured.replay()
        return self._captured.ids, rows, self._groups

    def _group(self, update: RowUpdate, sharing: PrefixSharing) -> None:
        """Find out who reads together, if that has changed.

        Where rows have only left, the device is not told: what it reads for them is not looked at.
        """
        if not len(update.rows):
            return
        if not len(update.table_rows) and self._groups is not None:
            self._groups = without_rows(self._groups, update.rows)
            return
        seats = self._seats
        rows = np.arange(self.shape.num_rows, dtype=np.int32)
        partitions = seats.num_partitions.copy()
        size = self._cache.block_size
        self._groups = groups = sharing.groups(seats.tables[0], rows, partitions, size)
        if groups is None:
            return
        for attention, spec in zip(self._attentions, self._cache.specs, strict=True):
            if spec.reads_together:
                attention.regroup(groups)

    def _step(self) -> Tensor:
        return self.buffers.step(
            self._model,
            self._cache,
            self._attentions,
            self._sampler,
            filtered=self.shape.filtered,
        )


class DecodeGraphs:
    """Captures a step when its shape comes back: most of those at a run's beginning do not.

    All of them share scratch memory; `num_bytes` is what they take with it, measured. With
    `capture` off the same steps are computed kernel by kernel: what is tested without a GPU.
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
        room: int | None = None,
    ) -> None:
        """Capture what takes up to `room` bytes, None: whatever comes."""
        self._room = room
        self.num_bytes = 0
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._device = device
        self._sharing = PrefixSharing(share=shared_prefix_attention)
        self._reads_together = any(spec.reads_together for spec in cache.specs)
        self._capture = capture
        self._memory = device.graph_memory() if capture else None
        self._graphs: dict[GraphShape, DecodeGraph] = {}
        self._seen: set[GraphShape] = set()
        self._last: DecodeGraph | None = None  # whose rows follow their sequences

    @property
    def shapes(self) -> list[GraphShape]:
        """What was captured so far."""
        return list(self._graphs)

    def run(self, step: StepInput, before: InFlight | None) -> Replayed | None:
        """Compute what of a step can be replayed; return that and what is left, or None.

        That is each generated token of a sequence, to be followed by one that is chosen in a way
        that can be captured, where a step of such a shape was seen before. `before` is the step
        that this one goes on from, if its tokens are not known yet.
        """
        found = self._part_of(step)
        if found is None:
            self._last = None  # a step comes between that the buffers do not follow
            return None
        graph, decoding, rest = found
        if graph is not self._last:
            graph.forget()
            self._last = graph
        known = KnownTokens.of(decoding, before)
        ids, rows, groups = graph.run(decoding, known, self._sharing)
        lens = torch.from_numpy(decoding.ends.astype(np.int32))
        read = DecodeInputs(torch.arange(len(lens), dtype=torch.int32), lens, groups)
        return Replayed(ids, rows, read, rest)

    def takes(self, step: StepInput) -> NDArray[np.bool_]:
        """Return which chunks are one generated token to be followed by one, [num_chunks]."""
        taken: NDArray[np.bool_] = (
            (step.ends == step.starts + 1)
            & step.samples
            & (step.store_from == step.starts)
            & (step.starts >= step.num_prompt_tokens)
        )
        return taken

    def release(self) -> None:
        """Let go of all that was captured, and of the memory that it takes."""
        self._last = None
        self._graphs.clear()
        self.num_bytes = 0

    def _part_of(self, step: StepInput) -> tuple[DecodeGraph, StepInput, StepInput | None] | None:
        """Return the graph to run, for what of a step, and what is left; None for no part."""
        is_taken = self.takes(step)
        if not is_taken.any():
            return None
        decoding, rest = step.split(is_taken)
        if not self._sampler.can_capture(decoding.draws):
            return None
        if rest is not None and (rest.ends > rest.num_prompt_tokens).any():
            return None  # generated tokens computed again, which read prefixes with the others
        graph = self._graph(self._shape_of(decoding))
        return None if graph is None else (graph, decoding, rest)

    def _graph(self, shape: GraphShape) -> DecodeGraph | None:
        """Return the graph for a step of some shape, None where that is seen for the first time.

        That whose rows are up to date is kept while few of them are empty.
        """
        last, is_new = self._last, shape not in self._seen
        fits = last is not None and last.shape.holds(shape)
        if last is not None and fits and not last.shape.wastes(shape):
            return last
        self._seen.add(shape)
        if is_new:
            return last if fits else None
        if shape not in self._graphs:
            if self._room is not None and self.num_bytes >= self._room:
                return last if fits else None
            self._graphs[shape] = self._made(shape)
        return self._graphs[shape]

    def _made(self, shape: GraphShape) -> DecodeGraph:
        before = self._device.bytes_in_use()
        graph = DecodeGraph(shape, self._model, self._cache, self._sampler, self._device)
        if self._capture:
            graph.capture(self._memory)
        self.num_bytes += max(self._device.bytes_in_use() - before, 0)
        return graph

    def _shape_of(self, step: StepInput) -> GraphShape:
        most = int(step.num_read_once_tokens.max()) // PARTITION_TOKENS * self._reads_together
        longest, size = int(step.max_num_tokens.max()), self._cache.block_size
        num_stop_ids = EarlyStops.width(step.draws, self._sampler.eos_token_ids)
        filtered = step.draws.has_filters(GREEDY_BELOW)
        return GraphShape.holding(
            step.num_chunks, longest, most, size, num_stop_ids, filtered=filtered
        )
