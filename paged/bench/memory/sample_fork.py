"""SampleFork: samples of one prompt that hold it together, until one of them goes on.

The scheduler's own way to several answers: the prompt is computed once, its sequence is forked, and
whoever writes into a block that others hold copies it first. A step that has room for one token
lets exactly one of the samples go on.
"""

from dataclasses import dataclass

from pagedrun.paged.bench.memory.held_blocks import HeldBlocks
from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace, TransferKind
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleFork:
    """What the samples hold: `together`, each for itself (`alone`), and once one has `diverged`.

    `num_copies` are the blocks copied for that: the last one, unless the prompt fills it.
    """

    together: HeldBlocks
    alone: HeldBlocks
    diverged: HeldBlocks
    num_copies: int

    @classmethod
    def of(cls, num_tokens: int, num_samples: int, block_size: int) -> "SampleFork":
        """Fork a prompt of `num_tokens` tokens, at least one, for so many samples.

        The prompt is computed one token a step, as there is room for no more.
        """
        alone = HeldBlocks.by([num_tokens] * num_samples, block_size, share=False)
        params = SamplingParams(n=num_samples, temperature=1.0, max_tokens=2)
        request = Request(0, (0,) * num_tokens, params)
        pool = BlockPool(alone.num_blocks + num_samples, block_size)
        plan = Plan([request], block_size, prefix_caching=False)
        limits = SchedulerLimits(num_samples, max_num_batched_tokens=1)
        scheduler = Scheduler(pool, SwapSpace(0), limits, prefix_caching=False)
        scheduler.add(plan, len(plan))
        for _ in range(num_tokens):
            scheduler.schedule()
            scheduler.update(0)
        together = HeldBlocks.of_pool(pool, num_samples)
        step = scheduler.schedule()  # the first sample writes its first own token
        copies = [each for each in step.transfers if each.kind is TransferKind.COPY]
        assert len(copies) == pool.counts.copies, "the pool has counted other copies"
        return cls(together, alone, HeldBlocks.of_pool(pool, num_samples), len(copies))
