"""Lays out a step for the model: all prompt tokens first, then all generated ones."""

import numpy as np
import torch
from numpy.typing import NDArray

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.forward_batch import (
    NO_SLOT,
    DecodeInputs,
    ForwardBatch,
    PrefillInputs,
)
from pagedrun.paged.execution.prefix_sharing import group_prefixes
from pagedrun.paged.scheduling.step_input import StepInput

Int64s = NDArray[np.int64]


def build_batch(step: StepInput, block_size: int, *, prefix_once: bool = True) -> ForwardBatch:
    """Return the tensors of a step, on the host.

    `prefix_once` lets rows that share partitions read them together.
    """
    lengths = step.ends - step.starts
    rows = np.repeat(np.arange(step.num_chunks), lengths)
    offsets = np.cumsum(lengths) - lengths
    positions = np.arange(step.num_tokens) + (step.starts - offsets)[rows]
    is_prompt = positions < step.num_prompt_tokens[rows]
    input_ids, last = step.input_ids, offsets + lengths - 1
    num_prefill = int(is_prompt.sum())
    if 0 < num_prefill < step.num_tokens:
        order = np.argsort(~is_prompt, kind="stable")
        rows, positions, input_ids = rows[order], positions[order], input_ids[order]
        place = np.empty_like(order)
        place[order] = np.arange(step.num_tokens)
        last = place[last]
    blocks = step.block_tables[rows, positions // block_size].astype(np.int64)
    slots = blocks * block_size + positions % block_size
    slots[positions < step.store_from[rows]] = NO_SLOT
    prefill = _prefill_inputs(step) if num_prefill else None
    decode = None
    if num_prefill < step.num_tokens:
        queries = rows[num_prefill:], positions[num_prefill:]
        decode = _decode_inputs(step, *queries, block_size, prefix_once)
    return ForwardBatch(
        input_ids=torch.from_numpy(input_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        block_tables=torch.from_numpy(step.block_tables),
        num_prefill_tokens=num_prefill,
        prefill=prefill,
        decode=decode,
        logits_rows=torch.from_numpy(last[step.samples]),
    )


def _prefill_inputs(step: StepInput) -> PrefillInputs:
    lengths = np.clip(step.num_prompt_tokens, step.starts, step.ends) - step.starts
    (rows,) = np.nonzero(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths[rows])])
    return PrefillInputs(
        chunk_starts=_int32(starts),
        table_rows=_int32(rows),
        first_positions=_int32(step.starts[rows]),
    )


def _decode_inputs(
    step: StepInput, rows: Int64s, positions: Int64s, block_size: int, prefix_once: bool
) -> DecodeInputs:
    table_rows = rows.astype(np.int32)
    partitions = (step.num_read_once_tokens[rows] // PARTITION_TOKENS).astype(np.int32)
    return DecodeInputs(
        table_rows=torch.from_numpy(table_rows),
        context_lens=_int32(positions + 1),
        prefixes=group_prefixes(
            step.block_tables, table_rows, partitions, block_size, share=prefix_once
        ),
    )


def _int32(numbers: Int64s) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int32))
