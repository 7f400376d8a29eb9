"""DecodeBuffers: the inputs of decode steps at fixed addresses, advanced by the device itself."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention.attention import Attention
from pagedrun.kernels.attention.attention_inputs import AttentionInputs, DecodeInputs
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.decode_graphs.row_update import FLOATS, INTEGERS, RowUpdate
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.early_stops import EarlyStops
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.execution.parcel import place_all
from pagedrun.paged.models.model import NO_SLOT, ForwardBatch, GroupBatch, Model


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Memory for the inputs of steps in which up to `num_rows` sequences decode one token each.

    A row whose context has no tokens is empty: it writes nothing, and what it samples is not
    looked at. integers: [7, num_rows] int64, see `INTEGERS`. floats: [3, num_rows] float32, see
    `FLOATS`. block_tables: [num_groups, num_rows, width] int32. rows: [num_rows] int32, 0, 1, 2, …
    context_lens: [num_rows] int32, the integers of that name as attention reads them. early_stops:
    what is forbidden to each row, None in a shape that has no room for it.
    """

    integers: Tensor
    floats: Tensor
    block_tables: Tensor
    rows: Tensor
    context_lens: Tensor
    early_stops: EarlyStops | None
    device: Device

    @classmethod
    def allocate(
        cls, num_rows: int, width: int, num_stop_ids: int, num_groups: int, device: Device
    ) -> "DecodeBuffers":
        """Return buffers in which all rows are empty."""

        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device.torch_device)

        return cls(
            zeros((len(INTEGERS), num_rows), torch.int64),
            zeros((len(FLOATS), num_rows), torch.float32),
            zeros((num_groups, num_rows, width), torch.int32),
            torch.arange(num_rows, dtype=torch.int32, device=device.torch_device),
            zeros((num_rows,), torch.int32),
            EarlyStops(
                zeros((num_rows,), torch.int64), zeros((num_rows, num_stop_ids), torch.int64)
            )
            if num_stop_ids
            else None,
            device,
        )

    def update(self, update: RowUpdate, chosen: Tensor | None) -> None:
        """Change some rows, by one copy.

        chosen: the tokens of the step before, on the device; None where the host knows all.
        """
        if update.is_empty:
            return
        width = self.block_tables.shape[2]
        tables = update.tables.transpose(1, 0, 2).reshape(-1, width * len(self.block_tables))
        values = (
            *(update.rows, update.integers, update.floats, update.num_missing, update.stop_ids),
            *(update.table_rows, tables, update.cells, update.blocks),
            *(update.unknown, update.sources),
        )
        there = place_all(
            self.device, [torch.from_numpy(np.ascontiguousarray(each)) for each in values]
        )
        rows, integers, floats, num_missing, stop_ids, table_rows, tables_there, *rest = there
        cells, blocks, unknown, sources = rest
        if len(update.rows):
            self.integers.index_copy_(1, rows, integers)
            self.floats.index_copy_(1, rows, floats)
            if self.early_stops is not None:
                self.early_stops.num_missing.index_copy_(0, rows, num_missing)
                self.early_stops.stop_ids.index_copy_(0, rows, stop_ids)
        if len(update.table_rows):
            of_rows = tables_there.view(len(table_rows), len(self.block_tables), width)
            self.block_tables.index_copy_(1, table_rows, of_rows.transpose(0, 1))
        if len(update.cells):
            self.block_tables.view(-1).index_copy_(0, cells, blocks)
        if len(update.unknown):
            assert chosen is not None, "a token is unknown that no step is computing"
            tokens = chosen.index_select(0, sources).clamp(min=0)
            self.integers[0].index_copy_(0, unknown, tokens)

    @property
    def attentions(self) -> tuple[AttentionInputs, ...]:
        """What attention of each group reads in every step: prepared once, before the first."""
        rows = DecodeInputs(self.rows, self.context_lens)
        return tuple(AttentionInputs(tables, decode=rows) for tables in self.block_tables)

    def step(
        self,
        model: Model,
        cache: KVCache,
        attentions: Seq[Attention],
        sampler: Sampler,
        *,
        filtered: bool = True,
    ) -> Tensor:
        """Compute a step, sample, and advance every row to the next one, all on the device.

        attentions: prepared from the inputs of that name. filtered: as `SamplingBatch` has it.
        Returns the sampled tokens, [num_rows] int64. Nothing here depends on what is in the
        buffers but values in kernels: a captured step can be replayed for any of it.
        """
        input_ids, positions, lens, top_k, seed, row, sample = self.integers
        temperature, top_p, min_p = self.floats
        size = cache.block_size
        is_used = lens > 0
        index, offsets = (positions // size).unsqueeze(1), positions % size
        groups = []
        for tables, attention in zip(self.block_tables, attentions, strict=True):
            blocks = tables.gather(1, index).squeeze(1)
            slots = torch.where(is_used, blocks.long() * size + offsets, NO_SLOT)
            groups.append(GroupBatch(slots, attention))
        self.context_lens.copy_(lens)
        batch = ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            num_prefill_tokens=0,
            groups=tuple(groups),
            logits_rows=self.rows.long(),
        )
        choice = (temperature, top_k.to(torch.int32), top_p, min_p, seed, row, sample)
        position = positions + 1
        sampling = SamplingBatch(*choice, position, self.early_stops, filtered=filtered)
        ids = sampler.choose(model.head(model.hidden(batch, cache)), sampling).ids
        input_ids.copy_(ids.clamp(min=0))
        positions.add_(is_used)
        lens.add_(is_used)
        if self.early_stops is not None:
            self.early_stops.num_missing.sub_(1).clamp_(min=0)
        return ids
