"""Inputs of captured decode steps at fixed addresses, advanced by the device itself.

`GraphShape` is the capacity of the buffers, `DecodeBuffers` their tensors, `GraphRows` the host's
record of the sequence in each row, and `RowUpdate` the changes that the host sends. A sequence
keeps its row from its first captured step to its last, so that a step in which other sequences
begin or end sends only the changes. A row without a sequence computes values that are never read.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Bools, Float32s, Int32s, Int64s
from pagedrun.kernels.attention import Attention
from pagedrun.kernels.attention_inputs import AttentionInputs, DecodeInputs
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.device import Device, transfer_packed
from pagedrun.paged.execution.logits.logits_processor import EarlyStops, SamplingBatch
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.models.model import NO_SLOT, ForwardBatch, GroupBatch, Model
from pagedrun.paged.scheduling.sequence_table import NO_UID, UNKNOWN_TOKEN
from pagedrun.paged.scheduling.step_input import StepInput

# Numbers of rows of captured steps: a step is padded to the next one. Small numbers lie close,
# because steps at the end of a run have few rows and padding costs a larger share of them.
_FINE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_COARSE = 64  # beyond, multiples of this
# Maximum share of empty rows before a smaller shape is used.
_MAX_EMPTY = 0.25
# Minimum width of block tables, in tokens: width costs little, and fewer shapes are captured.
_MIN_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class GraphShape:
    """Capacity of a captured step: rows, blocks of a row, partitions that all rows together read
    with others, and masked stop tokens of a row. filtered: rows may have top_k, top_p or min_p."""

    num_rows: int
    width: int
    num_shared_partitions: int
    num_stop_ids: int = 0
    filtered: bool = True

    def holds(self, other: "GraphShape") -> bool:
        """Return whether steps of another shape can be computed in this one."""
        return (
            other.num_rows <= self.num_rows
            and other.width <= self.width
            and other.num_stop_ids <= self.num_stop_ids
            and other.num_shared_partitions <= self.num_shared_partitions
            and other.filtered <= self.filtered
            # A captured step either reads prefixes or does not.
            and bool(other.num_shared_partitions) == bool(self.num_shared_partitions)
        )

    def wastes(self, other: "GraphShape") -> bool:
        """Return whether steps of another shape leave too many rows empty, or do not need the
        launches of filters."""
        has_empty = other.num_rows < (1 - _MAX_EMPTY) * self.num_rows
        return has_empty or (self.filtered and not other.filtered)

    @classmethod
    def holding(
        cls,
        num_rows: int,
        num_tokens: int,
        num_partitions: int,
        block_size: int,
        num_stop_ids: int = 0,
        *,
        filtered: bool = True,
    ) -> "GraphShape":
        """Return the smallest captured shape for these rows.

        num_tokens: maximum tokens of a row. num_partitions: shared partitions of a row.
        num_stop_ids: masked stop tokens of a row.
        """
        padded = next(
            (each for each in _FINE if each >= num_rows), -(-num_rows // _COARSE) * _COARSE
        )
        width = -(-max(num_tokens, _MIN_TOKENS) // block_size)
        shared = padded * _power_of_two(num_partitions)
        return cls(padded, _power_of_two(width), shared, _power_of_two(num_stop_ids), filtered)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0


INTEGERS = ("input_ids", "positions", "context_lens", "top_k", "seed", "row", "sample")
FLOATS = ("temperature", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """New values of some rows; the device has advanced all others.

    rows: [num_changed] int64, rows that get or lose a sequence. integers: [7, num_changed] int64,
    see `INTEGERS`, zeros for rows that lose one. floats: [3, num_changed] float32, see `FLOATS`.
    num_missing: [num_changed] int64, stop_ids: [num_changed, num_stop_ids] int64: see `EarlyStops`;
    without columns in a shape without room for them.

    table_rows: [num_taken] int64, rows that get a sequence; tables: [num_groups, num_taken, width]
    int32, their block tables. cells: [num_grown] int64, flat indices into all block tables; blocks:
    [num_grown] int32, their new values.

    unknown: [num_unknown] int64, rows whose newest token only the device knows; sources:
    [num_unknown] int64, indices of these tokens in the previous step.
    """

    rows: Int64s
    integers: Int64s
    floats: Float32s
    num_missing: Int64s
    stop_ids: Int64s
    table_rows: Int64s
    tables: Int32s
    cells: Int64s
    blocks: Int32s
    unknown: Int64s
    sources: Int64s

    @property
    def is_empty(self) -> bool:
        """Return whether no row changes."""
        return not len(self.rows) and not len(self.cells)

    @classmethod
    def of(
        cls,
        step: StepInput,
        *,
        chunks: Int64s,
        rows: Int64s,
        left: Int64s,
        tables: Int32s,
        grown: tuple[Int64s, Int32s],
        stop_ids: tuple[int, Seq[int]],
    ) -> "RowUpdate":
        """Return the changes of a decode step.

        chunks: [num_taken] int64, the chunks that get `rows`. left: [num_left] int64, rows without
        a sequence from now on. tables: [num_groups, num_rows, width], the current tables. grown:
        `cells` and `blocks`. stop_ids: columns for the stop tokens of a row, and the stop tokens of
        all rows.
        """
        width, eos_token_ids = stop_ids
        num_taken, every = len(chunks), np.concatenate([rows, left])
        integers = np.zeros((len(INTEGERS), len(every)), dtype=np.int64)
        integers[0, :num_taken] = np.maximum(step.input_ids[chunks], 0)
        integers[1, :num_taken] = step.starts[chunks]
        integers[2, :num_taken] = step.ends[chunks]
        for index, name in enumerate(INTEGERS[3:], start=3):
            integers[index, :num_taken] = getattr(step.draws, name)[chunks]
        floats = np.zeros((len(FLOATS), len(every)), dtype=np.float32)
        for index, name in enumerate(FLOATS):
            floats[index, :num_taken] = getattr(step.draws, name)[chunks]
        num_missing = np.zeros(len(every), dtype=np.int64)
        forbidden = np.zeros((len(every), width), dtype=np.int64)
        stops = EarlyStops.of(step.draws, eos_token_ids, width) if width else None
        if stops is not None:
            num_missing[:num_taken] = stops.num_missing.numpy()[chunks]
            forbidden[:num_taken] = stops.stop_ids.numpy()[chunks]
        is_unknown = step.input_ids == UNKNOWN_TOKEN
        sources = np.zeros(step.num_chunks, dtype=np.int64)
        sources[is_unknown] = step.sources
        asks = is_unknown[chunks]
        return cls(
            rows=every,
            integers=integers,
            floats=floats,
            num_missing=num_missing,
            stop_ids=forbidden,
            table_rows=rows,
            tables=tables[:, rows],
            cells=grown[0],
            blocks=grown[1],
            unknown=rows[asks],
            sources=sources[chunks[asks]],
        )


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Inputs of steps in which up to `num_rows` sequences decode one token each.

    A row whose context has no tokens is empty: it writes nothing, and its samples are ignored.
    integers: [7, num_rows] int64, see `INTEGERS`. floats: [3, num_rows] float32, see `FLOATS`.
    block_tables: [num_groups, num_rows, width] int32. rows: [num_rows] int32, 0, 1, 2, …
    context_lens: [num_rows] int32, the copy of the integers of that name for attention.
    early_stops: masked stop tokens of each row, None in a shape without room for them.
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
        """Return buffers with empty rows."""

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

        chosen: the tokens of the previous step on the device; None if the host knows all.
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
        there = transfer_packed(
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
        """Attention inputs of each group in all steps; prepared once, before the first."""
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
        """Compute a step, sample, and advance all rows, entirely on the device.

        attentions: prepared from the inputs of that name. filtered: as in `SamplingBatch`. Returns
        the sampled tokens, [num_rows] int64. Control flow does not depend on the contents of the
        buffers, so that a captured step can be replayed for any contents.
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
        ids = sampler.choose(model.head(model.hidden(batch, cache)), sampling)
        input_ids.copy_(ids.clamp(min=0))
        positions.add_(is_used)
        lens.add_(is_used)
        if self.early_stops is not None:
            self.early_stops.num_missing.sub_(1).clamp_(min=0)
        return ids


_NOT_KNOWN = -1  # no context has this length


class GraphRows:
    """Record of the sequences in the buffers of one graph, empty at first.

    tables: [num_groups, num_rows, width] int32. num_partitions: [num_rows] int32, leading
    partitions that each row reads with others, 0 in an empty row.
    """

    def __init__(self, shape: GraphShape, num_groups: int, block_size: int) -> None:
        self._shape = shape
        self._block_size = block_size
        self._uids: Int64s = np.full(shape.num_rows, NO_UID)
        self._ends: Int64s = np.zeros(shape.num_rows, dtype=np.int64)  # as the device has them
        self.tables: Int32s = np.zeros((num_groups, shape.num_rows, shape.width), dtype=np.int32)
        self.num_partitions: Int32s = np.zeros(shape.num_rows, dtype=np.int32)

    def forget(self) -> None:
        """Mark all rows as outdated."""
        self._ends[:] = _NOT_KNOWN

    def advance(self, rows: Int64s) -> None:
        """Record that the device has advanced these rows by one step."""
        self._ends[rows] += 1

    def assign(
        self, step: StepInput, eos_token_ids: Seq[int], *, reads_together: bool
    ) -> tuple[Int64s, RowUpdate]:
        """Assign rows to the sequences of a decode step; rows of other sequences become empty.

        Returns the row of each chunk, [num_chunks] int64, and the changes for the device.
        """
        rows = self._rows_of(step.uids)
        is_assigned = rows >= 0
        # The inputs of drafts are new in each step.
        is_kept = is_assigned & (self._ends[rows] == step.ends) & (step.uids >= 0)
        if step.transfers:  # they may have changed tables
            is_kept &= self._has_tables(rows, step)
        is_free = np.ones(self._shape.num_rows, dtype=np.bool_)
        is_free[rows[is_assigned]] = False
        was_left = is_free & (self._uids != NO_UID)
        (free,) = np.nonzero(is_free)
        rows[~is_assigned] = free[: int((~is_assigned).sum())]
        begins_block = step.starts % self._block_size == 0
        taken, grown = np.flatnonzero(~is_kept), np.flatnonzero(is_kept & begins_block)
        was_left[rows] = False
        (left,) = np.nonzero(was_left)
        self._note(step, rows, taken, left, reads_together=reads_together)
        update = RowUpdate.of(
            step,
            chunks=taken,
            rows=rows[taken],
            left=left,
            tables=self.tables,
            grown=self._grow(step, rows, grown),
            stop_ids=(self._shape.num_stop_ids, eos_token_ids),
        )
        return rows, update

    def _rows_of(self, uids: Int64s) -> Int64s:
        """Return the row of each sequence, -1 for none."""
        order = np.argsort(self._uids, kind="stable")
        index = np.searchsorted(self._uids[order], uids)
        rows: Int64s = order[np.minimum(index, len(order) - 1)]
        return np.where(self._uids[rows] == uids, rows, -1)

    def _has_tables(self, rows: Int64s, step: StepInput) -> Bools:
        """Return a mask of the rows whose recorded tables match the step up to its own token."""
        same = np.ones(len(rows), dtype=np.bool_)
        num_held = -(-step.starts // self._block_size)
        for known, given in zip(self.tables, step.block_tables, strict=True):
            width = min(given.shape[1], known.shape[1])
            is_behind = np.arange(width) >= num_held[:, None]
            same &= ((known[rows, :width] == given[:, :width]) | is_behind).all(axis=1)
        return same

    def _note(
        self, step: StepInput, rows: Int64s, taken: Int64s, left: Int64s, *, reads_together: bool
    ) -> None:
        self._uids[left] = NO_UID
        self._ends[left] = 0
        self.num_partitions[left] = 0
        self._uids[rows], self._ends[rows] = step.uids, step.ends
        partitions = step.num_read_once_tokens[taken] // PARTITION_TOKENS * reads_together
        self.num_partitions[rows[taken]] = partitions
        for known, given in zip(self.tables, step.block_tables, strict=True):
            known[rows[taken]] = 0
            known[rows[taken], : given.shape[1]] = given[taken]

    def _grow(self, step: StepInput, rows: Int64s, grown: Int64s) -> tuple[Int64s, Int32s]:
        """Record the blocks that chunks start to write; return `cells` and `blocks`."""
        columns = step.starts[grown] // self._block_size
        _, num_rows, width = self.tables.shape
        cells, blocks = [], []
        for index, (known, given) in enumerate(zip(self.tables, step.block_tables, strict=True)):
            new = given[grown, columns]
            known[rows[grown], columns] = new
            cells.append((index * num_rows + rows[grown]) * width + columns)
            blocks.append(new)
        return np.concatenate(cells), np.concatenate(blocks)
