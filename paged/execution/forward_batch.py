"""Construction of a `ForwardBatch` from the input of a step.

Prompt tokens come first and generated tokens after them, because the prefill and the decode kernels
take contiguous ranges. Tensors go to the device in one packed transfer. Input tokens that only the
device knows, sampled by the step before, are filled in there.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Bools, Int32s, Int64s
from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    DecodeInputs,
    PrefillInputs,
    PrefixGroups,
)
from pagedrun.kernels.op_values import StateInputs
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.device import Device, transferred
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from pagedrun.paged.execution.step_result import KnownTokens
from pagedrun.paged.models.model import NO_SLOT, ForwardBatch, GroupBatch, Model
from pagedrun.paged.scheduling.sequence_table import NO_STATE, UNKNOWN_TOKEN
from pagedrun.paged.scheduling.step_input import StepInput


def forward_batch(
    step: StepInput,
    block_size: int,
    specs: Seq[KVCacheSpec],
    shapes: Seq[AttentionShape],
    sharing: PrefixSharing,
    device: Device,
    known: KnownTokens | None = None,
) -> tuple[ForwardBatch, tuple[AttentionInputs, ...]]:
    """Return the batch of a step on the device, and its attention inputs in host memory.

    specs, shapes: of each group of layers. sharing: groups the rows that read partitions together,
    by the tables of the first group: rows that share a prefix do so in all. known: tokens of the
    step before, None if the host knows all input tokens. A sequence without a choice of token
    continues with an arbitrary one, since its later results are discarded.
    """
    lengths = step.ends - step.starts
    rows, positions = _chunks_and_positions(step)
    offsets = np.cumsum(lengths) - lengths
    input_ids, last = step.input_ids, offsets + lengths - 1
    scored = _scored_tokens(step, offsets)
    num_prefill = int((positions < step.num_prompt_tokens[rows]).sum())
    batch_index = np.arange(step.num_tokens)
    if 0 < num_prefill < step.num_tokens:
        order = batch_order(step)
        rows, positions, input_ids = rows[order], positions[order], input_ids[order]
        batch_index[order] = np.arange(step.num_tokens)
        last, scored = batch_index[last], batch_index[scored]
    is_stored = positions < step.store_from[rows]
    prefill = _prefill_inputs(step) if num_prefill else None
    alone: DecodeInputs | None = None
    together = alone
    if num_prefill < step.num_tokens:
        queries = rows[num_prefill:], positions[num_prefill:]
        alone = together = _decode_inputs(*queries)
        if any(spec.reads_together for spec in specs):
            groups = _prefix_groups(step, queries[0], block_size, sharing)
            together = replace(alone, groups=groups)
    slots = [_slots(tables, rows, positions, is_stored, block_size) for tables in step.block_tables]
    attention = tuple(
        AttentionInputs(
            torch.from_numpy(tables),
            num_prefill,
            prefill,
            together if spec.reads_together else alone,
        )
        for tables, spec in zip(step.block_tables, specs, strict=True)
    )
    logits_rows = np.concatenate([last[step.samples], scored])
    states = _state_inputs(step, batch_index, lengths)
    sources = np.empty(0, dtype=np.int64) if known is None else known.sources
    unknown = sources if known is None else np.flatnonzero(input_ids == UNKNOWN_TOKEN)
    numbers = [input_ids, positions, logits_rows, unknown, sources]
    (ids_there, *there), slots_there, attention_there, states_there = transferred(
        device,
        lambda place: (
            [place(torch.from_numpy(each)) for each in numbers],
            [place(each) for each in slots],
            [each.placed(place) for each in attention],
            None if states is None else states.placed(place),
        ),
    )
    positions_there, logits_there, unknown_there, sources_there = there
    if known is not None:
        ids_there = ids_there.index_copy(0, unknown_there, known.chosen(sources_there))
    group_batches = tuple(
        GroupBatch(each, device.kernels.prepare(inputs, shape))
        for each, inputs, shape in zip(slots_there, attention_there, shapes, strict=True)
    )
    batch = ForwardBatch(
        ids_there, positions_there, num_prefill, group_batches, logits_there, states_there
    )
    return batch, attention


def batch_order(step: StepInput) -> Int64s:
    """Return the indices in a step of the tokens of its batch, [num_tokens] int64: tokens of
    prompts, then generated ones."""
    rows, positions = _chunks_and_positions(step)
    return np.argsort(positions >= step.num_prompt_tokens[rows], kind="stable")


def _chunks_and_positions(step: StepInput) -> tuple[Int64s, Int64s]:
    """Return the chunk of each token of a step, and its position, [num_tokens] int64 each."""
    lengths = step.ends - step.starts
    rows = np.repeat(np.arange(step.num_chunks), lengths)
    offsets = np.cumsum(lengths) - lengths
    return rows, np.arange(step.num_tokens) + (step.starts - offsets)[rows]


def decode_batch(
    tables: Seq[Int32s],
    positions: Int64s,
    block_size: int,
    shapes: Seq[AttentionShape],
    device: Device,
    *,
    is_stored: bool,
) -> ForwardBatch:
    """Return the batch of one generated token of each sequence, for a pass that reads no ids.

    tables: of each group of layers, [num_sequences, width] int32. positions: [num_sequences]
    int64, of the tokens. shapes: of each group. is_stored: their keys and values are in the cache.
    """
    rows = np.arange(len(positions))
    stored = np.full(len(positions), is_stored)
    decode = _decode_inputs(rows, positions)
    groups = []
    for table, shape in zip(tables, shapes, strict=True):
        slots = _slots(table, rows, positions, stored, block_size)
        inputs = AttentionInputs(torch.from_numpy(table), 0, None, decode).placed(device.place)
        groups.append(GroupBatch(device.place(slots), device.kernels.prepare(inputs, shape)))
    there = device.place(torch.from_numpy(positions))
    none = there[:0]
    return ForwardBatch(torch.zeros_like(there), there, 0, tuple(groups), none)


def _slots(
    tables: Int32s, rows: Int64s, positions: Int64s, is_stored: Bools, block_size: int
) -> Tensor:
    """Return the cache slots of each token's key and value, [num_tokens] int64.

    tables: [num_chunks, width] int32. rows: [num_tokens] int64, the chunk of each token.
    """
    slots = tables[rows, positions // block_size].astype(np.int64) * block_size
    slots += positions % block_size
    slots[is_stored] = NO_SLOT
    return torch.from_numpy(slots)


def _state_inputs(step: StepInput, batch_index: Int64s, lengths: Int64s) -> StateInputs | None:
    """Return the inputs of recurrent layers, None for a model without them.

    The drafts of a sequence go on from the state behind its newest token, in the chunk of that
    token. batch_index: [num_tokens] int64, position in the batch of each token, chunk by chunk.
    lengths: [num_chunks] int64, tokens of the chunks.
    """
    if (step.write_slots == NO_STATE).all():
        return None
    first = np.arange(step.num_chunks)  # the chunk that each goes on from, or itself
    written = {slot: chunk for chunk, slot in enumerate(step.write_slots.tolist())}
    for chunk in np.flatnonzero(step.uids < 0).tolist():
        first[chunk] = first[written.get(int(step.read_slots[chunk]), chunk)]
    of_tokens = np.repeat(first, lengths)
    order = np.argsort(of_tokens, kind="stable")
    writes = np.full(step.num_tokens, NO_STATE)
    writes[np.cumsum(lengths) - 1] = step.write_slots
    heads, counts = np.unique(of_tokens, return_counts=True)
    return StateInputs(
        tokens=_int32(batch_index[order]),
        chunk_starts=_int32(np.concatenate([[0], np.cumsum(counts)])),
        read_slots=_int32(step.read_slots[heads]),
        write_slots=_int32(writes[order]),
    )


def _scored_tokens(step: StepInput, offsets: Int64s) -> Int64s:
    """Return the indices of the tokens whose next token is to be scored, [num_scored] int64.

    offsets: [num_chunks] int64, index of the first token of each chunk.
    """
    counts = step.num_scored
    firsts = offsets + step.first_scored - step.starts
    behind = np.arange(len(step.targets)) - np.repeat(np.cumsum(counts) - counts, counts)
    scored: Int64s = np.repeat(firsts, counts) + behind
    return scored


def _prefill_inputs(step: StepInput) -> PrefillInputs:
    lengths = np.clip(step.num_prompt_tokens, step.starts, step.ends) - step.starts
    (rows,) = np.nonzero(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths[rows])])
    return PrefillInputs(
        chunk_starts=_int32(starts),
        table_rows=_int32(rows),
        first_positions=_int32(step.starts[rows]),
    )


def _decode_inputs(rows: Int64s, positions: Int64s) -> DecodeInputs:
    return DecodeInputs(table_rows=_int32(rows), context_lens=_int32(positions + 1))


def _prefix_groups(
    step: StepInput, rows: Int64s, block_size: int, sharing: PrefixSharing
) -> PrefixGroups | None:
    partitions = (step.num_read_once_tokens[rows] // PARTITION_TOKENS).astype(np.int32)
    return sharing.groups(step.block_tables[0], rows.astype(np.int32), partitions, block_size)


def _int32(numbers: Int64s) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int32))


def attention_shapes(model: Model, cache: KVCache) -> tuple[AttentionShape, ...]:
    """Return heads, dtypes and block size of each group of layers."""
    return tuple(
        replace(model.attention_shape(group, dtype), block_size=cache.block_size)
        for group, dtype in enumerate(cache.dtypes)
    )
