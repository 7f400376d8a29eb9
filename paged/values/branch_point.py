"""BranchPoint: where later prompts leave the path of one that runs."""

from typing import NamedTuple, Optional


class BranchPoint(NamedTuple):
    """So many of its first blocks some later prompt has in common with it, and no more.

    `next` is the one that comes to be asked for after it: another prompt's, with fewer blocks.
    """

    num_blocks: int
    next: Optional["BranchPoint"]
