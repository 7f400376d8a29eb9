"""PrefixSource: where the scheduler may find blocks that no sequence of this run has computed."""

from typing import NamedTuple, Protocol

from pagedrun.paged.sequence import Sequence


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
