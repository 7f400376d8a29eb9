"""PrefixSource: where the scheduler may find blocks that no sequence of this run has computed."""

from collections.abc import Sequence as Seq
from typing import Protocol

from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.cache.staged_blocks import StagedBlocks
from pagedrun.paged.scheduling.prefix_donor import Donor
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_builder import StepBuilder
from pagedrun.paged.values.block_key import BlockKey
from pagedrun.paged.values.request import Request


class PrefixSource(Protocol):
    """Looked at when a new sequence is let in."""

    def find(
        self, request: Request, block_keys: Seq[BlockKey], num_hits: int, num_given: int
    ) -> StagedBlocks | None:
        """Return what follows the first `num_hits` blocks of the prompt, or None.

        block_keys: of the prompt's first blocks, those hits at least.

        None also where it is not worth its while beside the `num_given` tokens that a block of
        another sequence gives. What is returned must be moved: it is staged for that.
        """


def load_prefix(
    source: PrefixSource | None,
    sequence: Sequence,
    num_hits: int,
    donor: Donor | None,
    step: StepBuilder,
) -> int:
    """Let the step load what `source` has behind the hits of a sequence; return its tokens.

    The sequence holds the blocks that it goes to. 0 if a donor's block gives about as much.
    """
    num_given = donor.num_tokens if donor is not None else 0
    if source is None:
        return 0
    staged = source.find(sequence.request, sequence.block_keys, num_hits, num_given)
    if staged is None:
        return 0
    targets = sequence.blocks_from(num_hits)[: len(staged.sources)]
    step.transfers += [
        BlockTransfer(TransferKind.LOAD, block, target)
        for block, target in zip(staged.sources, targets, strict=True)
    ]
    return staged.num_tokens
