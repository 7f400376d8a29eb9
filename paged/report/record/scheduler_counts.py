"""SchedulerCounts: what a scheduler has done since its run began."""

from dataclasses import dataclass, field

from pagedrun.paged.values.engine_config import PreemptionMode


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the run began."""

    prompt_tokens: int = 0  # of admitted sequences, whether computed or cached
    cached_tokens: int = 0  # of these, taken from the cache
    partial_hit_tokens: int = 0  # of these, copied with the first part of another's block
    computed_tokens: int = 0  # every token of every chunk
    recomputed_tokens: int = 0  # of these, computed before and lost to a preemption
    forks: int = 0
    steps_short_of_memory: int = 0  # in which a sequence was kept out, or sent away
    blocks_held_when_short: int = 0  # in all of these steps together
    preemptions: dict[PreemptionMode, int] = field(
        default_factory=lambda: dict.fromkeys(PreemptionMode, 0)
    )
