"""Decode graphs: captured steps of generated tokens, replayed with a single launch.

Launching a network's kernels one by one takes the host longer than a small model's step takes
the device. A captured step is one launch that includes attention, sampling and the inputs of
the next step; the host sends the device only the rows that changed their sequence and the new
blocks. A shape is captured once the steps that would have gained by it add up to the time that
this takes. Prompt tokens of the same step are computed beside it, kernel by kernel.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Bools, Int64s
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
from pagedrun.paged.scheduling.step_input import StepInput

# The time of a capture, in units of that by which a step takes longer in a graph with empty rows.
# A capture computes the step twice on the host, records it and waits for the device: 60 ms of
# Qwen3-0.6B on an H200. A step that is launched kernel by kernel takes the host 15 to 20 ms, and
# one in a graph a size too large the device 1 to 4 ms more.
CAPTURE_COST = 16
LAUNCHED_COST = 5


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of the replayed part of a step.

    ids: the sampled tokens on the device, overwritten by the next run. rows: [num_chunks] int64,
    index in `ids` of each replayed chunk. read: the attention inputs. rest: the chunks that were
    not replayed, None if all were.
    """

    ids: Tensor
    rows: Int64s
    read: DecodeInputs
    rest: StepInput | None


class DecodeGraph:
    """Step of one shape, with the buffers that it reads and advances and their sequences.

    `run` computes the step kernel by kernel until `capture` is called.
    """

    def __init__(
        self, shape: GraphShape, model: Model, cache: KVCache, sampler: Sampler, device: Device
    ) -> None:
        self.shape = shape
        self.buffers = DecodeBuffers.allocate(
            shape.num_rows, shape.width, shape.num_stop_ids, len(cache.groups), device
        )
        self._rows = GraphRows(shape, len(cache.groups), cache.block_size)
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
        """Record the step on the device; memory: scratch memory shared with other graphs.

        The step is computed once, so that the buffers must hold no rows yet.
        """
        self._captured = self._device.capture(self._step, memory)

    def forget(self) -> None:
        """Mark the buffers as outdated: their sequences were advanced by other steps."""
        self._rows.forget()

    def run(
        self, step: StepInput, known: KnownTokens | None, sharing: PrefixSharing
    ) -> tuple[Tensor, Int64s, PrefixGroups | None]:
        """Compute a decode step that fits the shape.

        `known`: tokens of the previous step that the host has not read, None if there are none.
        Returns the sampled tokens, [num_rows] int64 on the device, overwritten by the next run; the
        row of each chunk, [num_chunks] int64; and the groups of rows that read together.
        """
        eos_token_ids: Seq[int] = self._sampler.eos_token_ids
        sources = step.sources if known is None else known.sources
        rows, update = self._rows.assign(
            replace(step, sources=sources), eos_token_ids, reads_together=self._reads_together
        )
        self.buffers.update(update, None if known is None else known.ids)
        if self.shape.num_shared_partitions:
            self._group(update, sharing)
        self._rows.advance(rows)
        if self._captured is None:
            return self._step(), rows, self._groups
        self._captured.replay()
        return self._captured.ids, rows, self._groups

    def _group(self, update: RowUpdate, sharing: PrefixSharing) -> None:
        """Update the groups of rows that read together, if they have changed.

        If rows have only left, the groups on the device stay as they are: results of those rows are
        ignored.
        """
        if not len(update.rows):
            return
        if not len(update.table_rows) and self._groups is not None:
            self._groups = without_rows(self._groups, update.rows)
            return
        record = self._rows
        rows = np.arange(self.shape.num_rows, dtype=np.int32)
        partitions = record.num_partitions.copy()
        size = self._cache.block_size
        self._groups = groups = sharing.groups(record.tables[0], rows, partitions, size)
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
    """Graphs by shape, captured when the lack of one has cost as much as a capture does.

    Most shapes at the beginning and the end of a run occur once or twice. All graphs share scratch
    memory; `num_bytes` is the measured memory of graphs and scratch. With `capture` off the same
    steps are computed kernel by kernel, as in tests without a GPU.
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
        """room: maximum bytes of all graphs, None for no limit."""
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
        self._lost: Counter[GraphShape] = Counter()  # by steps of a shape without its graph
        self._last: DecodeGraph | None = None  # the graph with up-to-date rows

    @property
    def shapes(self) -> list[GraphShape]:
        """Captured shapes."""
        return list(self._graphs)

    def run(self, step: StepInput, before: InFlight | None) -> Replayed | None:
        """Replay a part of a step; return its result and the rest, or None.

        The part is the generated tokens whose next token is sampled by rules that can be captured,
        if the shape was seen before. `before`: the previous step, if its tokens are inputs of this
        one.
        """
        found = self._part_of(step)
        if found is None:
            self._last = None  # this step does not advance the buffers
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

    def is_decoding(self, step: StepInput) -> Bools:
        """Return a mask of the chunks of one generated token that sample, [num_chunks]."""
        taken: Bools = (
            (step.ends == step.starts + 1)
            & step.samples
            & (step.store_from == step.starts)
            & (step.starts >= step.num_prompt_tokens)
        )
        return taken

    def begin_run(self) -> None:
        """Forget what steps of earlier runs have cost; the graphs stay."""
        self._lost.clear()

    def release(self) -> None:
        """Free all graphs and their memory."""
        self._last = None
        self._graphs.clear()
        self.num_bytes = 0

    def _part_of(self, step: StepInput) -> tuple[DecodeGraph, StepInput, StepInput | None] | None:
        """Return the graph, the part of the step to replay and the rest; None for no part."""
        is_taken = self.is_decoding(step)
        if not is_taken.any():
            return None
        decoding, rest = step.split(is_taken)
        if not self._sampler.can_capture(decoding.draws):
            return None
        if rest is not None and (rest.ends > rest.num_prompt_tokens).any():
            return None  # recomputed generated tokens share prefix reads with the others
        graph = self._graph(self._shape_of(decoding))
        return None if graph is None else (graph, decoding, rest)

    def _graph(self, shape: GraphShape) -> DecodeGraph | None:
        """Return the graph for a shape, None for a step that is better launched.

        The graph of the previous step is preferred while few of its rows are empty.
        """
        last = self._last if self._last is not None and self._last.shape.holds(shape) else None
        if last is not None and not last.shape.wastes(shape):
            return last
        if shape not in self._graphs:
            self._lost[shape] += LAUNCHED_COST if last is None else 1
            is_full = self._room is not None and self.num_bytes >= self._room
            if is_full or self._lost[shape] < CAPTURE_COST:
                return last
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
