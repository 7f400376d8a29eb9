"""SwapSpace: which host blocks are free to take the blocks of a preempted sequence."""


class SwapSpace:
    """A free list over `num_blocks` blocks of host memory. Nothing is shared in it.

    Most runs preempt nobody, and a small model has millions of blocks in a gigabyte: blocks that
    were never taken are a number, not a list.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_touched = 0  # blocks from here on were never taken
        self._given_back: list[int] = []

    @staticmethod
    def num_blocks_in(num_bytes: int, bytes_per_block: int) -> int:
        """Return how many blocks there is room for; none of those that take no memory."""
        return num_bytes // bytes_per_block if bytes_per_block else 0

    @property
    def num_free(self) -> int:
        """Blocks that can be taken."""
        return self.num_blocks - self._num_touched + len(self._given_back)

    def take(self, count: int) -> list[int] | None:
        """Take `count` blocks, or return `None` and take none."""
        if count > self.num_free:
            return None
        return [self._take_one() for _ in range(count)]

    def give_back(self, block_ids: list[int]) -> None:
        """Make blocks free again."""
        self._given_back.extend(block_ids)

    def _take_one(self) -> int:
        if self._given_back:
            return self._given_back.pop()
        self._num_touched += 1
        return self._num_touched - 1
