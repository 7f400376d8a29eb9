"""PlannedSharing: what the prompts of a window have in common, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedSharing:
    """Counts of one window, duplicates included with all their tokens.

    `achievable_hit_tokens` are the prompt tokens that need not be computed if each prefix is kept
    to the token while it is needed, `block_hit_tokens` those that whole blocks spare, and
    `common_tokens` what the first would be if nothing forbade it. `num_shared_blocks` are the
    distinct blocks that more than one request holds.
    """

    achievable_hit_tokens: int
    block_hit_tokens: int
    common_tokens: int
    num_shared_blocks: int
    num_duplicates: int
