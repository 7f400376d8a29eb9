"""Counters of a run, and the memory report made from them."""

import platform
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.cache.block_pool import BlockPool, PoolCounts
from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.report_sections import (
    EngineReport,
    GroupFigures,
    Hardware,
    LedgerFigures,
    PlainValue,
    PoolFigures,
    StageTimes,
    WeightFigures,
    group_figures,
    groups_part,
)
from pagedrun.paged.metrics.step_costs import StepFit, StepTimes
from pagedrun.paged.metrics.timeline import TIMELINE_RECORDS, Decimated, SchedulerCounts, StepRecord
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.planned_request import PlannedSharing
from pagedrun.paged.values.request import Completion


@dataclass(kw_only=True)
class AnswerCounts:
    """Counts of shared prompt tokens and of answers, of one engine or of several replicas."""

    achievable_hit_tokens: int = 0
    block_hit_tokens: int = 0  # of these, in whole blocks
    common_tokens: int = 0  # that prompts have in common, cached or not
    duplicate_rows: int = 0
    copied_tokens: int = 0  # generated tokens copied to duplicates of a row
    finish_reasons: Counter[str] = field(default_factory=Counter)
    timeline: Decimated[StepRecord] = field(default_factory=lambda: Decimated(TIMELINE_RECORDS))
    run_s: float = 0.0

    def note_sharing(self, planned: PlannedSharing) -> None:
        """Add the sharing of a window."""
        self.achievable_hit_tokens += planned.achievable_hit_tokens
        self.block_hit_tokens += planned.block_hit_tokens
        self.common_tokens += planned.common_tokens
        self.duplicate_rows += planned.num_duplicates

    def note_completion(self, completion: Completion) -> None:
        """Add a finished request, unless its answer was copied from an earlier run."""
        if not completion.is_copied:
            self.finish_reasons.update(completion.finish_reasons)
            self.copied_tokens += completion.num_copied_tokens


@dataclass(kw_only=True)
class RunStatistics(AnswerCounts):
    """Counts of one run. `pools`: of its groups of layers; block counts refer to the first group,
    which keeps whole sequences."""

    block_size: int
    pools: Seq[PoolShape]
    max_model_len: int
    num_shared_blocks_planned: int = 0
    num_steps: int = 0
    step_times: StepTimes = field(default_factory=StepTimes)
    step_fit: StepFit = field(default_factory=StepFit)
    last_step: tuple[int, int] = (0, 0)  # prompt tokens and generated ones
    generated_tokens: int = 0
    max_step_tokens: int = 0
    max_step_logits: int = 0
    _further_peaks: tuple[int, ...] = ()  # of the other groups
    _peak_blocks: int = 0
    _tokens_at_peak: int = 0
    _sequences_at_peak: int = 0
    _most_sequences: int = 0
    _finished_tokens: int = 0
    _finished_samples: int = 0
    _private_blocks: int = 0

    def note_sharing(self, planned: PlannedSharing) -> None:
        """Add the sharing of a window."""
        super().note_sharing(planned)
        self.num_shared_blocks_planned = max(
            self.num_shared_blocks_planned, planned.num_shared_blocks
        )

    def note_seconds(self, seconds: float, num_prompt: int, num_generated: int) -> None:
        """Add the duration of a step of these prompt and generated tokens."""
        self.step_times.add(seconds, num_prompt, num_generated)
        self.step_fit.add(seconds, num_prompt, num_generated)

    @property
    def num_blocks(self) -> int:
        """Blocks of the first pool."""
        return self.pools[0].num_blocks

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers."""
        return sum(each.bytes_per_token for each in self.pools)

    def note_step(
        self, num_tokens: int, num_samples: int, pools: Seq[BlockPool], num_sequences: int
    ) -> None:
        """Add a step; pools: of each group. num_sequences: sequences that hold blocks."""
        pool, *further = pools
        self._further_peaks = tuple(each.counts.peak_held for each in further)
        self.num_steps += 1
        self._most_sequences = max(self._most_sequences, num_sequences)
        self.last_step = (num_tokens - num_samples, num_samples)
        if pool.num_held > self._peak_blocks:
            self._peak_blocks, self._tokens_at_peak = pool.num_held, 0
        if pool.num_held == self._peak_blocks and pool.num_tokens_held >= self._tokens_at_peak:
            self._tokens_at_peak, self._sequences_at_peak = pool.num_tokens_held, num_sequences
        self.max_step_tokens = max(self.max_step_tokens, num_tokens)
        self.max_step_logits = max(self.max_step_logits, num_samples)

    def note_completion(self, completion: Completion) -> None:
        """Add a finished request and the blocks it held; a duplicate held none."""
        super().note_completion(completion)
        if completion.is_copied:
            return
        self.generated_tokens += completion.num_copied_tokens
        if completion.is_duplicate:
            return
        prompt = len(completion.request.prompt_token_ids)
        # A prompt found whole counts one cached token less than its blocks hold.
        hit_blocks = -(-completion.num_cached_tokens // self.block_size)
        for output in completion.outputs:
            stored = prompt + len(output.token_ids) - 1
            self._finished_tokens += stored
            self._finished_samples += 1
            self._private_blocks += -(-stored // self.block_size) - hit_blocks

    def kv(self) -> PoolFigures:
        """Return the pool figures of the report's `kv`."""
        slots = self._peak_blocks * self.block_size
        utilization = self._tokens_at_peak / slots if slots else 0.0
        pool_bytes = sum(each.num_bytes(self.block_size) for each in self.pools)
        samples = max(self._finished_samples, 1)
        reserved = max(self.max_model_len * self.bytes_per_token, 1)
        mean_tokens = self._finished_tokens / samples
        return {
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "bytes_per_token": self.bytes_per_token,
            "pool_bytes": pool_bytes,
            "peak_blocks": self._peak_blocks,
            "utilization_at_peak": utilization,
            "tail_waste": 1.0 - utilization if slots else 0.0,
            "tail_waste_expected": self._expected_waste(slots),
            "contiguous_utilization": min(mean_tokens / self.max_model_len, 1.0),
            "contiguous_max_requests": pool_bytes // reserved,
            # At least the observed maximum, since not all prefixes are held at once.
            "paged_max_requests": max(self._paged_requests(samples), self._most_sequences),
        }

    def groups(self) -> list[GroupFigures]:
        """Return the figures of each pool."""
        further = self._further_peaks or (0,) * (len(self.pools) - 1)  # without a step
        peaks = (self._peak_blocks, *further)
        return [
            group_figures(each, peak, self.block_size)
            for each, peak in zip(self.pools, peaks, strict=True)
        ]

    def _paged_requests(self, samples: int) -> int:
        """Return the number of requests of mean length that fit into all pools."""
        mean_private = max(self._private_blocks / samples, 1 / self.block_size)
        own_blocks = max(self.num_blocks - self.num_shared_blocks_planned, 0)
        rooms = [int(own_blocks / mean_private)]
        mean_blocks = max(self._finished_tokens / samples / self.block_size, 1)
        for each in self.pools[1:]:
            if each.window is not None:
                reached = -(-(each.window - 1) // self.block_size) + 1
                rooms.append(int(each.num_blocks / min(reached, mean_blocks)))
        return min(rooms)

    def _expected_waste(self, slots: int) -> float:
        """Return the share of slots in half an empty block for each sequence."""
        return min(self._sequences_at_peak * self.block_size / 2 / slots, 1.0) if slots else 0.0


def memory_report(
    *,
    statistics: RunStatistics,
    scheduler: SchedulerCounts,
    pool: PoolCounts,
    attention_bytes: tuple[int, int],
    times: StageTimes,
    memory: LedgerFigures,
    weights: WeightFigures,
    config: Mapping[str, object],
    device: str,
    found_in_store: int = 0,
) -> EngineReport:
    """Return the report without `rows`, which the job adds.

    `attention_bytes`: read by attention, and read if every row were read alone.

    Duplicates of a row are answered with its tokens: their prompts count as cached, their answers
    as generated and copied. `hit_tokens` counts the tokens of whole cached blocks, the copied parts
    of blocks (`partial_hit_tokens`) and the prompts of duplicates. `achievable_hit_rate` is that of
    a cache that keeps every common prefix to its last token, `block_hit_rate` that of one that
    keeps whole blocks, `possible_hit_rate` that with caching on; all include the `found_in_store`
    tokens of earlier runs. `seconds_saved` is estimated from the time of a computed prompt token,
    None with too few steps. `short_of_blocks`: share of steps in which a row was not admitted, or
    was preempted.
    """
    read, unshared = attention_bytes
    prompt, cached = scheduler.prompt_tokens, scheduler.cached_tokens
    run_s = max(statistics.run_s, 1e-9)
    token_s = statistics.step_times.seconds_per_prompt_token
    preemptions = scheduler.preemptions
    used = memory["weights"] + memory["kv_pool"] + memory["activations_peak"] + memory["other"]
    used += memory.get("states", 0) + memory.get("graphs", 0)

    def rate(planned: int) -> float:
        return (planned + found_in_store) / prompt if prompt else 0.0

    report: EngineReport = {
        "tokens": {
            "prompt": prompt,
            "cached": cached,
            "computed": prompt - cached,
            "generated": statistics.generated_tokens,
            "generated_copied": statistics.copied_tokens,
            "preempted_recomputed": scheduler.recomputed_tokens,
        },
        "time": {
            **times,
            "run_s": statistics.run_s,
            "prompt_tokens_per_s": prompt / run_s,
            "generated_tokens_per_s": statistics.generated_tokens / run_s,
        },
        "kv": {
            **statistics.kv(),
            **groups_part(statistics.groups()),
            "mean_use_when_short": _mean_use_when_short(scheduler, statistics.num_blocks),
            "short_of_blocks": scheduler.steps_short_of_memory / max(statistics.num_steps, 1),
        },
        "prefix": {
            "hit_tokens": cached,
            "hit_rate": cached / prompt if prompt else 0.0,
            "achievable_hit_rate": rate(statistics.achievable_hit_tokens),
            "block_hit_rate": rate(statistics.block_hit_tokens),
            "possible_hit_rate": rate(statistics.common_tokens),
            "partial_hit_tokens": scheduler.partial_hit_tokens,
            "duplicate_rows": statistics.duplicate_rows,
            "hits": pool.hits,
            "misses": pool.misses,
            "evictions": pool.evictions,
            "shared_blocks_peak": pool.peak_shared,
            "bytes_saved": cached * statistics.bytes_per_token,
            "seconds_saved": None if token_s is None else cached * token_s,
            "attention_bytes_read": read,
            "attention_bytes_without_sharing": unshared,
        },
        "copy_on_write": {"forks": scheduler.forks, "block_copies": pool.copies},
        "preemptions": {
            "swap": preemptions[PreemptionMode.SWAP],
            "recompute": preemptions[PreemptionMode.RECOMPUTE],
        },
        "memory": {**memory, "free": memory["device_total"] - used},
        "weights": weights,
        "finish_reasons": dict(statistics.finish_reasons),
        "timeline": [record.to_dict() for record in statistics.timeline.items],
        "config": plain_config(config),
        "hardware": describe_hardware(device),
    }
    if (costs := statistics.step_fit.costs) is not None:
        report["step_costs"] = costs
    return report


def _mean_use_when_short(scheduler: SchedulerCounts, num_blocks: int) -> float:
    """Return the mean use of the pool over the steps in which a row was not admitted."""
    steps = scheduler.steps_short_of_memory
    return scheduler.blocks_held_when_short / (steps * num_blocks) if steps else 0.0


def plain_config(config: Mapping[str, object]) -> dict[str, PlainValue]:
    """Return the report's `config`, with values that JSON cannot hold as text."""
    plain = str | int | float | bool | None
    return {name: each if isinstance(each, plain) else str(each) for name, each in config.items()}


PACKAGES = ("pagedrun", "torch", "numba", "transformers")


def describe_hardware(device: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> Hardware:
    """Return the report's `hardware`: enough to compare figures, no host names."""
    return {
        "device": device,
        "processor": _processor(cpuinfo),
        "threads": cpu_quota(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _processor(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@cache  # a search takes milliseconds
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout
        return None
