"""AttentionInputs: which queries of a step read which tokens, the same for every backend."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from pagedrun.kernels.attention.prefix_groups import PrefixGroups

Place = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """Prompt tokens: chunks of consecutive queries.

    chunk_starts: [num_chunks + 1] int32, offsets into the step's tokens. table_rows: [num_chunks]
    int32, each chunk's row in the block tables. first_positions: [num_chunks] int32.
    """

    chunk_starts: Tensor
    table_rows: Tensor
    first_positions: Tensor

    def placed(self, place: Place) -> "PrefillInputs":
        """Return the same on a device."""
        return PrefillInputs(
            place(self.chunk_starts), place(self.table_rows), place(self.first_positions)
        )


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Generated tokens, one query each.

    table_rows: [num_rows] int32. context_lens: [num_rows] int32, the token itself included, 0 for
    an empty row. groups: which rows read which shared partitions together, if any do.
    """

    table_rows: Tensor
    context_lens: Tensor
    groups: PrefixGroups | None = None

    def placed(self, place: Place) -> "DecodeInputs":
        """Return the same on a device; groups stay on the host, where a backend prepares them."""
        return DecodeInputs(place(self.table_rows), place(self.context_lens), self.groups)

    def tokens_read(self, window: int | None) -> tuple[int, int]:
        """Return the tokens that attention reads in a layer; see `AttentionInputs.tokens_read`."""
        lens = self.context_lens if window is None else self.context_lens.clamp(max=window)
        total, saved = int(lens.sum()), 0
        if window is None and self.groups is not None:
            saved = self.groups.num_tokens_saved
        return total - saved, total


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What attention of one step reads besides queries and cache, in all layers.

    The step's tokens are all prefill tokens, then all decode tokens. block_tables: [num_tables,
    max_blocks] int32, block ids in order of position. A backend prepares this for itself.
    """

    block_tables: Tensor
    num_prefill_tokens: int = 0
    prefill: PrefillInputs | None = None
    decode: DecodeInputs | None = None

    def placed(self, place: Place) -> "AttentionInputs":
        """Return the same with its tensors on a device, as `place` puts them there."""
        return replace(
            self,
            block_tables=place(self.block_tables),
            prefill=self.prefill and self.prefill.placed(place),
            decode=self.decode and self.decode.placed(place),
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
