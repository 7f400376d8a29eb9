"""DecodeGraph: one step that only decodes, captured for so many rows, and replayed."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
from torch import Tensor

from pagedrun.kernels.attention.prefix_groups import PrefixGroups
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.attention_shapes import attention_shapes
from pagedrun.paged.execution.decode_graphs.decode_buffers import DecodeBuffers
from pagedrun.paged.execution.decode_graphs.graph_shape import GraphShape
from pagedrun.paged.execution.decode_graphs.row_update import RowUpdate
from pagedrun.paged.execution.decode_graphs.seated_rows import SeatedRows
from pagedrun.paged.execution.devices.captured_step import CapturedStep
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.known_tokens import KnownTokens
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.prefix_sharing import PrefixSharing, without_rows
from pagedrun.paged.models.model import Model
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import StepInput


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
        self._seats = SeatedRows(shape, len(cache.groups), cache.block_size)
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
