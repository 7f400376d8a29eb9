"""PlannedRequest: a request with all decisions of the plan about it.

Also the values that these decisions consist of: keys of blocks, branch points, and counts of
shared tokens.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from pagedrun.paged.values.request import Request

ROOT_DIGEST = hashlib.sha256(b"pagedrun prefix root").digest()
DIGEST_BYTES = len(ROOT_DIGEST)


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Key of a full block: its tokens and, through the chain, all tokens before it.

    `digest` = SHA-256(parent digest ‖ tokens as little-endian int32). A fixed-width encoding of a
    fixed number of tokens leaves no two token lists with the same bytes. A cryptographic hash,
    because prompts come from strangers and a collision would hand one row another row's keys.
    """

    digest: bytes
    parent: bytes
    token_ids: tuple[int, ...]

    @classmethod
    def chain(
        cls, token_ids: Sequence[int], block_size: int, known: Sequence["BlockKey"] = ()
    ) -> list["BlockKey"]:
        """Return the keys of every full block of `token_ids`, first to last.

        `known` are the keys of its first blocks, as far as another prompt has them already.
        """
        keys = list(known)
        parent = keys[-1].digest if keys else ROOT_DIGEST
        begin = len(keys) * block_size
        for start in range(begin, len(token_ids) - block_size + 1, block_size):
            keys.append(cls.after(parent, tuple(token_ids[start : start + block_size])))
            parent = keys[-1].digest
        return keys

    @classmethod
    def after(cls, parent: bytes, token_ids: tuple[int, ...]) -> "BlockKey":
        """Return the key of the block that follows the one with digest `parent`."""
        return cls(block_digest(parent, token_ids), parent, token_ids)


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the digest of the block that follows the one with digest `parent`; see `BlockKey`."""
    return hashlib.sha256(parent + array("i", token_ids).tobytes()).digest()


class BranchPoint(NamedTuple):
    """Number of leading blocks that a later prompt shares.

    `next` is the branch point needed after it: another prompt's, with fewer blocks.
    """

    num_blocks: int
    next: Optional["BranchPoint"]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request with its plan, for the scheduler, the simulation and replicas; can be pickled.

    Fields that affect the bytes of a row, above all `num_read_once_tokens`, depend on all rows of
    the window and travel with the row, so that results are the same in any batch.

    `place` counts from 0 in the window's run order. `block_keys` name the prompt's first whole
    blocks, as many as another row may ask for. Of the prompt's leading tokens `num_shared_tokens`
    are those of another row, or sample, as well, and of these attention reads the first
    `num_read_once_tokens` for all their rows together. The first `num_keep_blocks` blocks are
    needed by the row that comes next. `group` is window and subtree of rows whose answers are
    likely to be of like length. `num_common_tokens` are those that it has in common with the row
    before it in the run order, and of its prompt `num_stored_tokens` are to go to the prefix store.
    `branch_point` is where rows to come leave its prompt: first the one that runs next. In a model
    with recurrent layers it begins with the state behind its first `num_state_blocks` blocks, and
    rows to come begin with those at its `state_points`, which it leaves there on its way.
    Of its samples `num_samples` are drawn from `first_sample` on, None for all there are. Its
    answer begins with `begun_token_ids`, which an earlier run has drawn.
    """

    request: Request
    place: int = 0
    block_keys: tuple[BlockKey, ...] = ()
    num_shared_tokens: int = 0
    num_read_once_tokens: int = 0
    num_keep_blocks: int = 0
    group: tuple[int, int] = (0, 0)
    num_common_tokens: int = 0
    num_stored_tokens: int = 0
    branch_point: BranchPoint | None = None
    num_state_blocks: int = 0
    state_points: BranchPoint | None = None
    first_sample: int = 0
    num_samples: int | None = None
    begun_token_ids: tuple[int, ...] = ()

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples to draw, by their indices."""
        count = self.num_samples or self.request.params.num_drawn_samples
        return tuple(range(self.first_sample, self.first_sample + count))


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
