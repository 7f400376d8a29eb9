"""SwapSpace: which host blocks are free to take the blocks of a preempted sequence."""


class SwapSpace:
    """A free list over `num_blocks` blocks of host memory. Nothing is shared in it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be taken."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Take `count` blocks, or return `None` and take none."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give_back(self, block_ids: list[int]) -> None:
        """Make blocks free again."""
        self._free.extend(block_ids)
