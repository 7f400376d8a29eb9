"""SchedulerLimits: how large a step may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much one step may hold: sequences, and tokens to compute. refill_share: see `Refill`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    refill_share: float = 0.0
