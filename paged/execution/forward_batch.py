"""ForwardBatch: a scheduled batch as the plain tensors that the model reads."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.prefix_sharing import group_prefixes
from pagedrun.paged.scheduling.scheduled_batch import ScheduledBatch, ScheduledChunk
from pagedrun.paged.scheduling.sequence import UNKNOWN_TOKEN

if TYPE_CHECKING:  # Triton is not everywhere
    from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork

NO_SLOT = -1  # the token's key and value are in the cache already


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """Prompt tokens: chunks of consecutive queries.

    chunk_starts: [num_chunks + 1] int32, offsets into the batch's tokens. table_rows: [num_chunks]
    int32, each chunk's row in the block tables. first_positions: [num_chunks] int32.
    """

    chunk_starts: Tensor
    table_rows: Tensor
    first_positions: Tensor

    def place(self, device: Device) -> "PrefillInputs":
        """Return the same on a device."""
        place = device.place
        return PrefillInputs(
            place(self.chunk_starts), place(self.table_rows), place(self.first_positions)
        )


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Generated tokens, one query each.

    table_rows: [num_rows] int32. context_lens: [num_rows] int32, the token itself included.
    prefixes: which rows read which shared partitions together, if any do; on a GPU as its work.
    """

    table_rows: Tensor
    context_lens: Tensor
    prefixes: "PrefixGroups | PrefixWork | None"

    def place(self, device: Device) -> "DecodeInputs":
        """Return the same on a device."""
        place = device.place
        return DecodeInputs(place(self.table_rows), place(self.context_lens), self.prefixes)

    def tokens_read(self, window: int | None) -> tuple[int, int]:
        """Return the tokens that attention reads in a layer; see `ForwardBatch.tokens_read`."""
        lens = self.context_lens if window is None else self.context_lens.clamp(max=window)
        total, saved = int(lens.sum()), 0
        if window is None and isinstance(self.prefixes, PrefixGroups):
            saved = self.prefixes.num_tokens_saved
        return total - saved, total


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Everything a forward pass needs besides weights and cache.

    The batch's tokens are all prefill tokens, then all decode tokens. Prompt tokens always take
    the prefill path and generated ones the decode path, also when a preempted sequence is
    computed again, since the two do not round alike.

    input_ids, positions, slots: [num_tokens] int64; a slot is `block_id * block_size + offset`.
    block_tables: [num_chunks, max_blocks] int32. logits_rows: [num_logits] int64, the tokens whose
    logits are wanted, in the order of the scheduled chunks that sample.
    """

    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    num_prefill_tokens: int
    prefill: PrefillInputs | None
    decode: DecodeInputs | None
    logits_rows: Tensor

    def place(self, device: Device, known: tuple[Tensor, list[int]] | None) -> "ForwardBatch":
        """Return the batch on a device, its unknown input tokens filled in there.

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
        return replace(
            self,
            input_ids=input_ids,
            positions=device.place(self.positions),
            slots=device.place(self.slots),
            block_tables=device.place(self.block_tables),
            logits_rows=device.place(self.logits_rows),
            prefill=self.prefill and self.prefill.place(device),
            decode=self.decode and self.decode.place(device),
        )

    @classmethod
    def build(
        cls, batch: ScheduledBatch, block_size: int, *, prefix_once: bool = True
    ) -> "ForwardBatch":
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
            logits_rows=torch.tensor(wanted, dtype=torch.int64),
        )

    def tokens_read(self, window: int | None) -> tuple[int, int]:
        """Return the tokens whose keys and values attention reads in a layer with this window.

        First as it is done, then as if no two rows read together. A chunk reads its context once.
        """
        total = saved = 0
        if self.prefill is not None:
            lengths = self.prefill.chunk_starts.diff()
            seen = self.prefill.first_positions + lengths
            if window is not None:
                seen = seen.minimum(lengths + window - 1)
            total += int(seen.sum())
        if self.decode is not None:
            read, alone = self.decode.tokens_read(window)
            total, saved = total + alone, alone - read
        return total - saved, total


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
        prefixes=group_prefixes(
            tables, rows, prefixes[rows] // PARTITION_TOKENS, block_size, share=prefix_once
        ),
    )
