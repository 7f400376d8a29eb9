"""HeldBlocks: what requests hold in the pool when all of them are in flight at once.

Asked of the engine's own scheduler and pool: one step lets every request in with all its tokens,
and what is held is then the pool's own count. Reserving the longest length for every request, as
engines without paging do, is the same with blocks of that length: each request takes one.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.bench.memory.memory_figures import HeldFigures
from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks of the pool that are held, and the tokens in them; shared ones count once."""

    block_size: int
    num_requests: int
    num_blocks: int
    num_tokens: int
    num_shared_blocks: int

    @classmethod
    def by(
        cls, lengths: Seq[int], block_size: int, *, num_shared: int = 0, share: bool = True
    ) -> "HeldBlocks":
        """Hold requests of so many tokens each behind `num_shared` that all of them begin with.

        share: whether the beginning may be held once for all. lengths: at least one, each at
        least 1.
        """
        params = SamplingParams(max_tokens=1)
        requests = [
            Request(index, (0,) * num_shared + (1 + index,) * length, params)
            for index, length in enumerate(lengths)
        ]
        plan = Plan(requests, block_size, prefix_caching=share)
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        pool = BlockPool(sum(-(-(num_shared + each) // block_size) for each in lengths), block_size)
        limits = SchedulerLimits(len(requests), num_tokens)
        scheduler = Scheduler(pool, SwapSpace(0), limits, prefix_caching=share)
        scheduler.add(plan, len(plan))
        scheduler.schedule()
        assert len(scheduler.running) == len(requests), "a request was not let in"
        return cls.of_pool(pool, len(requests))

    @classmethod
    def of_pool(cls, pool: BlockPool, num_requests: int) -> "HeldBlocks":
        """Return what the pool counts now."""
        held = (pool.num_held, pool.num_tokens_held, pool.num_shared)
        return cls(pool.block_size, num_requests, *held)

    @property
    def utilization(self) -> float:
        """The part of the held slots that stores a token."""
        return self.num_tokens / (self.num_blocks * self.block_size)

    @property
    def empty_per_request(self) -> float:
        """Held slots without a token, for each request."""
        return (self.num_blocks * self.block_size - self.num_tokens) / self.num_requests

    def num_bytes(self, bytes_per_token: int) -> int:
        """Return the bytes of the held blocks."""
        return self.num_blocks * self.block_size * bytes_per_token

    def to_dict(self, bytes_per_token: int) -> HeldFigures:
        """Return the figures, as a result states them."""
        return {
            "block_size": self.block_size,
            "blocks": self.num_blocks,
            "tokens": self.num_tokens,
            "bytes": self.num_bytes(bytes_per_token),
            "utilization": self.utilization,
            "empty_per_request": self.empty_per_request,
        }
