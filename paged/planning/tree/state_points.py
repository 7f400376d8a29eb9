"""Where the states of recurrent layers are kept: behind which blocks which rows begin.

A state is large, and what it spares is what lies between it and the one before. So a row begins
with one of its own only where that spares enough; otherwise with that of the level above.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.values.branch_point import BranchPoint

# A state is not kept for fewer tokens than these.
MIN_STATE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class StatePoints:
    """Blocks behind which there is a state that rows begin with, in run order.

    `begins` has for each row its own, 0 for none. `left` has for each those on its path with which
    later rows begin, the last one first. `open` are those of the path at the end, which the rows of
    the next window may begin with.
    """

    begins: list[int]
    left: list[BranchPoint | None]
    open: BranchPoint | None
    _block_size: int
    _min_tokens: int

    @classmethod
    def of(
        cls,
        common: NDArray[np.int32],
        limits: NDArray[np.int64],
        block_size: int,
        *,
        before: BranchPoint | None = None,
        has_next: bool = False,
        min_tokens: int = MIN_STATE_TOKENS,
    ) -> "StatePoints":
        """Choose them.

        common: [num_rows] int32, tokens in common with the row before. limits: [num_rows] int64,
        tokens behind which each can begin at the most. before: what is open behind the row before
        the first. has_next: whether another window follows. min_tokens: what a state spares.
        """
        shared = common.tolist()
        begins, path = [], before
        for place, (num_common, limit) in enumerate(zip(shared, limits.tolist(), strict=True)):
            path = _cut(path, num_common // block_size)
            count = min(num_common, limit) // block_size
            found = _cut(path, count)
            begin = found.num_blocks if found is not None else 0
            is_worth_it = num_common - begin * block_size >= min_tokens
            # Of the row before the first it is too late to want anything.
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
        """Return those on the path of a row whose samples begin with the last block of its prompt,
        of so many tokens, if they find no seat when it is computed."""
        count = num_tokens // self._block_size
        spared = (count - self.begins[place]) * self._block_size
        return with_point(self.left[place], count if spared >= self._min_tokens else 0)

    @property
    def depth(self) -> int:
        """The most that are wanted of the path of one row."""
        return max(map(_length, self.left), default=0)


def _cut(points: BranchPoint | None, num_blocks: int) -> BranchPoint | None:
    """Return those behind at most so many blocks."""
    while points is not None and points.num_blocks > num_blocks:
        points = points.next
    return points


def with_point(points: BranchPoint | None, num_blocks: int) -> BranchPoint | None:
    """Return the points with one more, unless it is there or has no block."""
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
