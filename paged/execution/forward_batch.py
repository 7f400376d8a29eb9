"""ForwardBatch: a step as the plain tensors that the model reads."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pagedrun.kernels.prefix_groups import PrefixGroups
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.known_tokens import KnownTokens
from pagedrun.paged.scheduling.sequence_table import UNKNOWN_TOKEN

if TYPE_CHECKING:  # Triton is not everywhere
    from pagedrun.kernels.gpu.prefix_work import PrefixWork

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

    def place(self, device: Device, known: KnownTokens | None) -> "ForwardBatch":
        """Return the batch on a device, its unknown input tokens filled in there.

        known: None if all are known. Where there was no choice any token will do: what follows
        from it is thrown away.
        """
        input_ids = device.place(self.input_ids)
        if known is not None:
            (unknown,) = torch.nonzero(self.input_ids == UNKNOWN_TOKEN, as_tuple=True)
            chosen = known.chosen(device)
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
