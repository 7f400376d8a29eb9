"""Reuse of prefixes by later rows: block keys, recurrent states and tokens for the prefix store.

Only blocks that another row may look up get a key. A recurrent state is large, and saves only the
tokens between it and the previous one: a row gets a state of its own where that saves enough
tokens, and otherwise starts from the state of the level above. The prefix store keeps tokens that
several rows share, up to its capacity.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.cache.prefix_store.entry import MIN_STORED_TOKENS
from pagedrun.paged.planning.prefix_tree import common_to
from pagedrun.paged.values.planned_request import (
    DIGEST_BYTES,
    ROOT_DIGEST,
    BlockKey,
    BranchPoint,
    block_digest,
)


class BlockKeys:
    """Keys of the blocks of each row; iterate it in run order. Adjacent rows share the objects.

    Hashing, the slow part, is done in the constructor. A window may have millions of keys: their
    digests are kept in one bytes object, each once, and converted to objects one row at a time.
    """

    def __init__(
        self,
        prompts: Seq[tuple[int, ...]],
        num_keys: Int64s,
        num_known: Int64s,
        block_size: int,
    ) -> None:
        """Hash the first `num_keys` blocks of each prompt.

        prompts: in run order. num_keys: [num_rows] int64. num_known: [num_rows] int64, keys in
        common with the previous row; 0 for the first.
        """
        self._prompts = prompts
        self._num_keys = num_keys
        self._num_known = num_known
        self._block_size = block_size
        self._digests = self._hashed()

    def __iter__(self) -> Iterator[tuple[BlockKey, ...]]:
        keys: tuple[BlockKey, ...] = ()
        begin = 0
        counts = zip(self._num_known.tolist(), self._num_keys.tolist(), strict=True)
        for prompt, (num_known, num_keys) in zip(self._prompts, counts, strict=True):
            keys = keys[:num_known]
            if num_keys > num_known:
                end = begin + (num_keys - num_known) * DIGEST_BYTES
                keys += self._made(keys, prompt, self._digests[begin:end])
                begin = end
            yield keys

    def _made(
        self, known: tuple[BlockKey, ...], prompt: tuple[int, ...], digests: bytes
    ) -> tuple[BlockKey, ...]:
        """Return the keys with these digests, behind the `known` ones of a prompt."""
        size, made = self._block_size, []
        parent = known[-1].digest if known else ROOT_DIGEST
        start = len(known) * size
        for place in range(0, len(digests), DIGEST_BYTES):
            digest = digests[place : place + DIGEST_BYTES]
            made.append(BlockKey(digest, parent, prompt[start : start + size]))
            parent = digest
            start += size
        return tuple(made)

    def _hashed(self) -> bytes:
        """Return the digests that each row has and the previous one has not, row by row."""
        size, digests = self._block_size, bytearray()
        path: list[bytes] = []  # digests of the last row with new keys
        (naming,) = np.nonzero(self._num_keys > self._num_known)
        for row in naming.tolist():
            prompt, num_known = self._prompts[row], int(self._num_known[row])
            # The rows in between have no new keys: the known keys are those of that row.
            del path[num_known:]
            parent = path[-1] if path else ROOT_DIGEST
            for start in range(num_known * size, int(self._num_keys[row]) * size, size):
                parent = block_digest(parent, prompt[start : start + size])
                path.append(parent)
                digests += parent
        return bytes(digests)


# A state is not kept for fewer tokens than these.
MIN_STATE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class StatePoints:
    """Blocks behind which a state is kept for other rows, in run order.

    `begins`: the block behind which each row starts, 0 for none. `left`: the points on each row's
    path from which later rows start, the last one first. `open`: points of the path at the end,
    from which rows of the next window may start.
    """

    begins: list[int]
    left: list[BranchPoint | None]
    open: BranchPoint | None
    _block_size: int
    _min_tokens: int

    @classmethod
    def of(
        cls,
        common: Int32s,
        limits: Int64s,
        block_size: int,
        *,
        before: BranchPoint | None = None,
        has_next: bool = False,
        min_tokens: int = MIN_STATE_TOKENS,
    ) -> "StatePoints":
        """Choose the points.

        common: [num_rows] int32, tokens in common with the previous row. limits: [num_rows] int64,
        tokens behind which each row can start at the latest. before: open points behind the row
        before the first. has_next: another window follows. min_tokens: tokens that a state must
        save.
        """
        shared = common.tolist()
        begins, path = [], before
        for place, (num_common, limit) in enumerate(zip(shared, limits.tolist(), strict=True)):
            path = _cut(path, num_common // block_size)
            count = min(num_common, limit) // block_size
            found = _cut(path, count)
            begin = found.num_blocks if found is not None else 0
            is_worth_it = num_common - begin * block_size >= min_tokens
            # The row before the first has been planned already.
            if place and count > begin and is_worth_it:
                begin = count
                path = with_point(path, count)
            begins.append(begin)
        left: list[BranchPoint | None] = []
        open_at_end = path if has_next else None
        wanted = open_at_end
        for num_common, begin in zip(reversed(shared), reversed(begins), strict=True):
            left.append(wanted)
            wanted = with_point(_cut(wanted, num_common // block_size), begin)
        return cls(begins, left[::-1], open_at_end, block_size, min_tokens)

    def left_by_samples(self, place: int, num_tokens: int) -> BranchPoint | None:
        """Return the points on the path of a row with several samples, the last block of its prompt
        included: samples without a free batch slot start from there. num_tokens: of the prompt."""
        count = num_tokens // self._block_size
        spared = (count - self.begins[place]) * self._block_size
        return with_point(self.left[place], count if spared >= self._min_tokens else 0)

    @property
    def depth(self) -> int:
        """Largest number of points on the path of one row."""
        return max(map(_length, self.left), default=0)


def _cut(points: BranchPoint | None, num_blocks: int) -> BranchPoint | None:
    """Return the points behind at most `num_blocks` blocks."""
    while points is not None and points.num_blocks > num_blocks:
        points = points.next
    return points


def with_point(points: BranchPoint | None, num_blocks: int) -> BranchPoint | None:
    """Return the points and a new one, unless it exists or has no block."""
    above = []
    while num_blocks and points is not None and points.num_blocks > num_blocks:
        above.append(points.num_blocks)
        points = points.next
    if num_blocks and (points is None or points.num_blocks < num_blocks):
        points = BranchPoint(num_blocks, points)
    for count in reversed(above):
        points = BranchPoint(count, points)
    return points


def _length(points: BranchPoint | None) -> int:
    length = 0
    while points is not None:
        length, points = length + 1, points.next
    return length


class StoreRoom(NamedTuple):
    """Capacity of a prefix store in tokens, and the tokens that a state takes the room of."""

    num_tokens: int = 0
    tokens_per_state: int = 0


NO_ROOM = StoreRoom()


def tokens_to_store(common: Int32s, room: StoreRoom) -> Int64s:
    """Return the leading tokens of each row to store, [num_rows] int64 in run order.

    common: [num_rows] int32, tokens in common with the previous row. Only prefixes of several rows
    of the run are chosen: the rest of a row is no other row's prefix, and may be private. If the
    store has no room for all, prefixes of more rows are preferred.
    """
    before = common.astype(np.int64)
    before[:1] = 0  # the row before the first, if any, is of another window
    num_rows = 2
    while num_rows <= len(before) and room.num_tokens:
        shared = common_to(num_rows, before.astype(np.int32)).astype(np.int64)
        shared[shared < MIN_STORED_TOKENS] = 0
        # In this order a token is new where the row before does not have it.
        new = np.maximum(shared - before, 0)
        ends = (shared > 0) & ((new > 0) | (np.diff(shared, prepend=0) != 0))
        num_states = np.count_nonzero(ends)  # at most
        if int(new.sum()) + room.tokens_per_state * num_states <= room.num_tokens:
            return shared
        num_rows *= 2
    return np.zeros_like(before)
