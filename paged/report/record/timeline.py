"""StepRecord: the engine's state after one step; a timeline is a run's worth of them."""

from dataclasses import dataclass

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.report.record.report_sections import TimelinePoint
from pagedrun.paged.report.record.scheduler_counts import SchedulerCounts

TIMELINE_RECORDS = 2000  # that a run keeps, however long


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One sample of the run. Times are seconds since the run began; counts are totals so far."""

    t: float
    step: int
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int  # held by at least one sequence
    blocks_shared: int  # held by more than one
    blocks_cached: int  # free, but still holding a prefix that a row may hit
    tokens: int  # tokens held in used blocks, shared ones counted once
    finished: int  # requests finished so far
    total: int  # requests in the run
    prompt_tokens: int  # of requests that were begun
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    prompt_tokens_left: int = 0  # of `prompt_tokens`, those that are still to be computed
    all_prompt_tokens: int = 0  # of all requests in the run

    @property
    def prompt_tokens_done(self) -> int:
        """Prompt tokens that were computed or taken from the cache so far."""
        return self.prompt_tokens - self.prompt_tokens_left

    @classmethod
    def of(
        cls,
        pool: BlockPool,
        counts: SchedulerCounts,
        *,
        t: float,
        step: int,
        running: int,
        waiting: int,
        finished: int,
        total: int,
        generated_tokens: int,
        prompt_tokens_left: int = 0,
        all_prompt_tokens: int = 0,
    ) -> "StepRecord":
        """Return the record of a step after which the pool and the scheduler's counts are these."""
        return cls(
            t=t,
            step=step,
            running=running,
            waiting=waiting,
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_held,
            blocks_shared=pool.num_shared,
            blocks_cached=pool.num_cached,
            tokens=pool.num_tokens_held,
            finished=finished,
            total=total,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            generated_tokens=generated_tokens,
            preemptions=sum(counts.preemptions.values()),
            prompt_tokens_left=prompt_tokens_left,
            all_prompt_tokens=all_prompt_tokens,
        )

    def to_dict(self) -> TimelinePoint:
        """Return the record as it is written to the report's timeline."""
        return {
            "t": self.t,
            "step": self.step,
            "running": self.running,
            "waiting": self.waiting,
            "blocks_used": self.blocks_used,
            "blocks_shared": self.blocks_shared,
            "blocks_cached": self.blocks_cached,
            "tokens": self.tokens,
        }
