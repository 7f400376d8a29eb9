"""PoolDemand: what the rows of a plan take of the pools of a model's groups of layers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.values.branch_point import BranchPoint


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """Blocks of the group that keeps whole sequences, but for `pinned`.

    `longest` is what a sequence takes at full length, at most, and `mean` on average, without what
    it finds in the pool; `num_shared` are those that rows find there. `largest` is what a row takes
    whose sequences must run together, `num_together` of them at most: its beams. There are
    `num_sequences` in all. `pinned` says for each window how many blocks of a group that has it
    wait behind branch points, at most.
    """

    longest: int
    mean: float = 1.0
    num_shared: int = 0
    largest: int = 1
    num_together: int = 1
    num_sequences: int | None = None
    pinned: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, windows: Iterable[int], *, is_whole: bool) -> "PoolDemand":
        """Return what the rows of a plan take. windows: of the groups that have one. is_whole:
        whether no other rows follow."""
        num_sequences = int(plan.num_samples.sum())
        return cls(
            longest=max(int(plan.num_blocks_at_full_length.max(initial=1)), 1),
            mean=max(int(plan.num_private_blocks.sum()) / max(num_sequences, 1), 1.0),
            num_shared=plan.sharing.num_shared_blocks,
            largest=int(plan.num_blocks_at_once.max(initial=1)),
            num_together=int(plan.num_beams.max(initial=1)),
            num_sequences=num_sequences if is_whole else None,
            pinned={
                window: num_pinned_blocks(plan.branch_points, window, plan.tree.block_size)
                for window in windows
            },
        )


def num_pinned_blocks(branches: Iterable[BranchPoint], window: int, block_size: int) -> int:
    """Return the most blocks that a group with a window keeps at once for later rows: of each point
    at which they leave a row's path those that the window reaches back to.

    branches: of each row, the point at which the next row leaves its path and those before it.
    """
    counts: dict[int, int] = {}  # by the branch points, which rows have in common

    def count(branch: BranchPoint) -> int:
        """Return the blocks pinned for a point and those before it."""
        path: list[BranchPoint] = []
        at: BranchPoint | None = branch
        while at is not None and id(at) not in counts:
            path.append(at)
            at = at.next
        before = 0 if at is None else counts[id(at)]
        for each in reversed(path):
            first = max(each.num_blocks * block_size - window, 0) // block_size
            known = 0 if each.next is None else each.next.num_blocks
            before += max(each.num_blocks - max(first, known), 0)
            counts[id(each)] = before
        return counts[id(branch)]

    return max(map(count, branches), default=0)
