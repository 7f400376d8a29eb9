"""ScheduledBatch: what one step computes, and which blocks move before it does."""

from dataclasses import dataclass, field, replace
from enum import Enum

from pagedrun.paged.scheduling.sequence import Sequence


class TransferKind(Enum):
    """Which memory a block moves between."""

    COPY = "copy"  # pool → pool, for copy-on-write
    SWAP_OUT = "swap_out"  # pool → host
    SWAP_IN = "swap_in"  # host → pool
    LOAD = "load"  # staged from the prefix store → pool


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """One block's bytes to move. Transfers run in the order in which they were scheduled:
    a block freed by one may be the target of the next."""

    kind: TransferKind
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `[start, end)` of a sequence, computed in this step.

    Those before `store_from` are in the cache already and are not written again. A chunk that
    ends with the sequence's last token gives logits to sample from.
    """

    sequence: Sequence
    start: int
    end: int
    store_from: int
    samples: bool

    @property
    def num_tokens(self) -> int:
        """Tokens of the chunk."""
        return self.end - self.start


@dataclass(slots=True)
class ScheduledBatch:
    """The chunks of one step and the transfers that precede them."""

    chunks: list[ScheduledChunk] = field(default_factory=list)
    transfers: list[BlockTransfer] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_samples(self) -> int:
        """Chunks that end with logits to sample from."""
        return sum(chunk.samples for chunk in self.chunks)

    def halves(self) -> tuple["ScheduledBatch", "ScheduledBatch"]:
        """Return two batches, each with about half of the tokens, to be computed one by one.

        A chunk may read what another of its step wrote, if that was scheduled before it: the order
        is kept. The transfers are left out, as they are done by then. A batch of one token cannot
        be cut.
        """
        middle = self.num_tokens // 2
        assert middle, "a batch of one token cannot be cut"
        first, second = ScheduledBatch(), ScheduledBatch()
        before = 0
        for chunk in self.chunks:
            cut = min(max(chunk.start + middle - before, chunk.start), chunk.end)
            before += chunk.num_tokens
            if cut == chunk.end:
                first.chunks.append(chunk)
            elif cut == chunk.start:
                second.chunks.append(chunk)
            else:
                first.chunks.append(replace(chunk, end=cut, samples=False))
                stored = max(chunk.store_from, cut)
                second.chunks.append(replace(chunk, start=cut, store_from=stored))
        return first, second
