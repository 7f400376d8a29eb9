"""PrefixSource: where the scheduler may find blocks that no sequence of this run has computed."""

from typing import NamedTuple, Protocol

from pagedrun.paged.scheduling.prefix_donor import Donor
from pagedrun.paged.scheduling.scheduled_batch import BlockTransfer, ScheduledBatch, TransferKind
from pagedrun.paged.scheduling.sequence import Sequence


class StagedBlocks(NamedTuple):
    """Blocks ready to be moved into the pool.

    `sources` are what `TransferKind.LOAD` moves, in the order of the tokens; together they hold
    `num_tokens`, so the last one may be filled in part.
    """

    sources: list[int]
    num_tokens: int


class PrefixSource(Protocol):
    """Looked at when a new sequence is let in."""

    def find(self, sequence: Sequence, num_hits: int, num_given: int) -> StagedBlocks | None:
        """Return what follows the first `num_hits` blocks of the prompt, or None.

        None also where it is not worth its while beside the `num_given` tokens that a block of
        another sequence gives. What is returned must be moved: it is staged for that.
        """


def load_prefix(
    source: PrefixSource | None,
    sequence: Sequence,
    num_hits: int,
    donor: Donor | None,
    batch: ScheduledBatch,
) -> int:
    """Let the batch load what `source` has behind the hits of a sequence; return its tokens.

    The sequence holds the blocks that it goes to. 0 if a donor's block gives about as much.
    """
    num_given = donor.num_tokens if donor is not None else 0
    staged = source.find(sequence, num_hits, num_given) if source is not None else None
    if staged is None:
        return 0
    targets = sequence.block_table[num_hits : num_hits + len(staged.sources)]
    batch.transfers += [
        BlockTransfer(TransferKind.LOAD, block, target)
        for block, target in zip(staged.sources, targets, strict=True)
    ]
    return staged.num_tokens
