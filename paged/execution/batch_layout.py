"""BatchLayout: a scheduled batch laid out as tensors, in the host's memory."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import AttentionInputs, DecodeInputs, PrefillInputs
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.prefix_sharing import group_prefixes
from pagedrun.paged.models.forward_batch import NO_SLOT, ForwardBatch
from pagedrun.paged.scheduling.scheduled_batch import ScheduledBatch, ScheduledChunk
from pagedrun.paged.scheduling.sequence import UNKNOWN_TOKEN


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What becomes a `ForwardBatch` on a device; see there for the order of tokens and the dtypes.

    Input tokens may be `UNKNOWN_TOKEN`: the device is still computing them.
    """

    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    attention: AttentionInputs
    logits_rows: Tensor

    def forward(
        self, device: Device, shape: AttentionShape, known: tuple[Tensor, list[int]] | None
    ) -> ForwardBatch:
        """Return the batch on a device, prepared for its kernels, unknown tokens filled in there.

        known: tokens sampled in the step before, [n] int64 on the device, and which of them the
        batch's unknown tokens are, in their order; None if all are known. Where there was no choice
        any token will do: what follows from it is thrown away.
        """
        input_ids = device.place(self.input_ids)
        if known is not None:
            ids, rows = known
            (unknown,) = torch.nonzero(self.input_ids == UNKNOWN_TOKEN, as_tuple=True)
            chosen = ids.index_select(0, device.place(torch.tensor(rows))).clamp(min=0)
            input_ids = input_ids.index_copy(0, device.place(unknown), chosen)
        return ForwardBatch(
            input_ids=input_ids,
            positions=device.place(self.positions),
            slots=device.place(self.slots),
            num_prefill_tokens=self.attention.num_prefill_tokens,
            attention=device.kernels.prepare(self.attention.placed(device.place), shape),
            logits_rows=device.place(self.logits_rows),
        )

    @classmethod
    def of(
        cls, batch: ScheduledBatch, block_size: int, *, prefix_once: bool = True
    ) -> "BatchLayout":
        """Lay out the chunks of a scheduled batch.

        `prefix_once` lets rows that share partitions read them together.
        """
        tables = _block_tables(batch.chunks)
        pieces = [piece for row, chunk in enumerate(batch.chunks) for piece in _split(row, chunk)]
        ordered = [piece for piece in pieces if piece.is_prompt]
        num_prefill = sum(piece.num_tokens for piece in ordered)
        decode = [piece for piece in pieces if not piece.is_prompt]
        ordered += decode

        input_ids: list[int] = []
        last_token = {}
        for piece in ordered:
            input_ids += piece.chunk.sequence.token_ids(piece.start, piece.end)
            last_token[piece.row] = (
                len(input_ids) - 1
            )  # a row's decode piece comes after its prefill
        rows = np.repeat([piece.row for piece in ordered], [piece.num_tokens for piece in ordered])
        positions = np.concatenate([np.arange(piece.start, piece.end) for piece in ordered])
        store_from = np.array([chunk.store_from for chunk in batch.chunks])[rows]
        blocks = tables[rows, positions // block_size].astype(np.int64)
        slots = np.where(
            positions >= store_from, blocks * block_size + positions % block_size, NO_SLOT
        )
        wanted = [last_token[row] for row, chunk in enumerate(batch.chunks) if chunk.samples]
        return cls(
            input_ids=torch.tensor(input_ids),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            attention=AttentionInputs(
                block_tables=torch.from_numpy(tables),
                num_prefill_tokens=num_prefill,
                prefill=_prefill_inputs([piece for piece in ordered if piece.is_prompt]),
                decode=_decode_inputs(
                    batch.chunks,
                    tables,
                    rows[num_prefill:].astype(np.int32),
                    positions[num_prefill:],
                    block_size,
                    prefix_once,
                ),
            ),
            logits_rows=torch.tensor(wanted, dtype=torch.int64),
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """The prompt part, or the generated part, of one chunk."""

    row: int
    chunk: ScheduledChunk
    start: int
    end: int
    is_prompt: bool

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


def _split(row: int, chunk: ScheduledChunk) -> list[_Piece]:
    border = min(max(chunk.sequence.num_prompt_tokens, chunk.start), chunk.end)
    pieces = [
        _Piece(row, chunk, chunk.start, border, True),
        _Piece(row, chunk, border, chunk.end, False),
    ]
    return [piece for piece in pieces if piece.num_tokens]


def _block_tables(chunks: Seq[ScheduledChunk]) -> np.ndarray:
    width = max(len(chunk.sequence.block_table) for chunk in chunks)
    tables = np.zeros((len(chunks), width), dtype=np.int32)
    for row, chunk in enumerate(chunks):
        table = chunk.sequence.block_table
        tables[row, : len(table)] = table
    return tables


def _prefill_inputs(pieces: list[_Piece]) -> PrefillInputs | None:
    if not pieces:
        return None
    starts = np.cumsum([0, *(piece.num_tokens for piece in pieces)])
    return PrefillInputs(
        chunk_starts=torch.from_numpy(starts.astype(np.int32)),
        table_rows=torch.tensor([piece.row for piece in pieces], dtype=torch.int32),
        first_positions=torch.tensor([piece.start for piece in pieces], dtype=torch.int32),
    )


def _decode_inputs(
    chunks: Seq[ScheduledChunk],
    tables: NDArray[np.int32],
    rows: NDArray[np.int32],
    positions: NDArray[np.int64],
    block_size: int,
    prefix_once: bool,
) -> DecodeInputs | None:
    if not len(rows):
        return None
    prefixes = np.array([chunk.sequence.num_read_once_tokens for chunk in chunks], dtype=np.int32)
    return DecodeInputs(
        table_rows=torch.from_numpy(rows),
        context_lens=torch.from_numpy((positions + 1).astype(np.int32)),
        groups=group_prefixes(
            tables, rows, prefixes[rows] // PARTITION_TOKENS, block_size, share=prefix_once
        ),
    )
