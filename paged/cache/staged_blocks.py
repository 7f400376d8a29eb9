"""StagedBlocks: what the prefix store has ready for a prompt."""

from typing import NamedTuple


class StagedBlocks(NamedTuple):
    """Blocks ready to be moved into the pool.

    `sources` are what `TransferKind.LOAD` moves, in the order of the tokens; together they hold
    `num_tokens`, so the last one may be filled in part.
    """

    sources: list[int]
    num_tokens: int
