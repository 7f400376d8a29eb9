"""StagedBlocks: what the prefix store has ready for a prompt."""

from typing import NamedTuple


class StagedBlocks(NamedTuple):
    """Blocks ready to be moved into the pool.

    `sources` are what `TransferKind.LOAD` moves, of each group of layers, in the order of the
    tokens. Together those of the first group hold `num_tokens`, so the last one may be filled in
    part; another group has the last of them, as far back as its window reaches.
    """

    sources: list[list[int]]
    num_tokens: int


class StagedState(NamedTuple):
    """A state of recurrent layers behind the first `num_tokens` tokens of a prompt, ready to be
    moved into a slot; and, in `blocks`, those blocks up to there that the prompt lacks."""

    source: int
    num_tokens: int
    blocks: StagedBlocks
