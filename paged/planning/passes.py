"""Passes over streamed weights: the size of steps, and the time and bytes of a run.

Each step is a pass: all weights that are not pinned are read once, however many tokens the step
has. Reading hides behind computing if a step computes for longer than it reads, so steps are made
larger for a slow disk. Both speeds are measured once, when the weights are packed, and decide no
byte of the output. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagedrun.paged.models.streaming.residency import PassSpeeds, Residency
from pagedrun.paged.planning.forecast_sections import Limit, PassForecast
from pagedrun.paged.planning.memory import HostMemory
from pagedrun.paged.values.engine_config import EngineConfig

# A step computes for so many times as long as it reads, where memory allows.
HIDDEN = 8.0
MIN_STEP_TOKENS, MAX_STEP_TOKENS = 2_048, 65_536
UNKNOWN_STEP_TOKENS = 8_192  # before speeds are measured
STEP_TOKENS_UNIT = 1_024
NUM_SEQS = 1_024  # rows cost no reading; the pool limits them
HIDDEN_SHARE = 1 / 32  # of the host's memory, for the hidden states of a step

@dataclass(frozen=True, slots=True)
class PassCosts:
    """Costs of a pass. speeds: None before they are measured. hidden_bytes: of a token's hidden
    states between layers."""

    residency: Residency
    speeds: PassSpeeds | None
    hidden_bytes: int

    @property
    def read_s(self) -> float | None:
        """Seconds to read the weights of a pass."""
        if self.speeds is None:
            return None
        return self.residency.pass_bytes / self.speeds.bytes_per_s

    def compute_s(self, num_tokens: int) -> float | None:
        """Return the seconds to compute a step, None if unknown."""
        if self.speeds is None or self.speeds.tokens_per_s is None:
            return None
        return num_tokens / self.speeds.tokens_per_s

    def fitted(self, config: EngineConfig, host_bytes: int | None = None) -> EngineConfig:
        """Return the configuration with steps so large that reading hides behind computing.

        Settings that were given are kept. host_bytes: the host's memory, None to read it.
        """
        host_bytes = host_bytes or HostMemory.read().total
        room = int(host_bytes * HIDDEN_SHARE) // self.hidden_bytes
        num_tokens = UNKNOWN_STEP_TOKENS
        if self.speeds is not None and self.speeds.tokens_per_s is not None:
            assert self.read_s is not None, "measured together"
            hiding = HIDDEN * self.read_s * self.speeds.tokens_per_s
            num_tokens = -(-int(hiding) // STEP_TOKENS_UNIT) * STEP_TOKENS_UNIT
        num_tokens = max(min(num_tokens, room, MAX_STEP_TOKENS), MIN_STEP_TOKENS)
        fitted: dict[str, Any] = {"max_num_seqs": NUM_SEQS, "max_num_batched_tokens": num_tokens}
        return replace(config, **{name: fitted[name] for name in fitted if name in config.fitted})

    def figures(
        self, step_tokens: Mapping[int, int], scale: float, *, is_full: bool
    ) -> PassForecast:
        """Return the figures of a run.

        step_tokens: number of simulated steps by their tokens, of which a run has `scale` times as
        many. is_full: rows wait for KV memory.
        """
        num_passes = round(scale * sum(step_tokens.values()))
        read_s, compute_s, run_s = self.read_s, None, None
        limit: Limit | None = None
        times = {count: self.compute_s(count) for count in step_tokens}
        if read_s is not None and None not in times.values():
            known = {count: seconds for count, seconds in times.items() if seconds is not None}
            compute_s = scale * sum(known[count] * steps for count, steps in step_tokens.items())
            run_s = scale * sum(
                max(known[count], read_s) * steps for count, steps in step_tokens.items()
            )
            limit = "arithmetic" if compute_s >= read_s * num_passes else "disk"
            if limit == "disk" and is_full:
                limit = "KV memory"
        return {
            "pinned_bytes": self.residency.pinned_bytes,
            "ring_bytes": self.residency.ring_bytes,
            "pass_bytes": self.residency.pass_bytes,
            "passes": num_passes,
            "bytes_read": num_passes * self.residency.pass_bytes,
            "bytes_per_s": None if self.speeds is None else self.speeds.bytes_per_s,
            "tokens_per_s": None if self.speeds is None else self.speeds.tokens_per_s,
            "read_s": None if read_s is None else read_s * num_passes,
            "compute_s": compute_s,
            "run_s": run_s,
            "limit": limit,
        }
