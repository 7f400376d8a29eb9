"""The memory report: what a run did, in the shape that users and scripts rely on."""

from collections.abc import Mapping

from pagedrun.paged.cache.block_pool import PoolCounts
from pagedrun.paged.report.record.hardware import describe_hardware
from pagedrun.paged.report.record.report_sections import (
    EngineReport,
    LedgerFigures,
    PlainValue,
    StageTimes,
    groups_part,
)
from pagedrun.paged.report.record.run_statistics import RunStatistics
from pagedrun.paged.report.record.scheduler_counts import SchedulerCounts
from pagedrun.paged.report.record.weight_figures import WeightFigures
from pagedrun.paged.values.engine_config import PreemptionMode


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
    """Return the report without `rows`, which only the job knows.

    `attention_bytes` is what attention read, and what it would have if every row read alone.

    Rows that ask the same as another are answered with its tokens: their prompts count as cached,
    the answers as generated and, of these, copied. `hit_tokens` counts what whole cached blocks
    gave, the parts of blocks that were copied (`partial_hit_tokens`), and the duplicates' prompts;
    `achievable_hit_rate` is that of a cache which keeps every common prefix to its last token,
    `block_hit_rate` that of one which keeps whole blocks, `possible_hit_rate` what it would be if
    caching were on; all of them had the `found_in_store` tokens of earlier runs besides.
    `seconds_saved` is estimated by what a computed prompt token took, None if too few were to tell.
    `short_of_blocks` is the share of steps in which a row was kept out, or sent away.
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
        "config": {name: _plain(value) for name, value in config.items()},
        "hardware": describe_hardware(device),
    }
    if (costs := statistics.step_fit.costs) is not None:
        report["step_costs"] = costs
    return report


def _mean_use_when_short(scheduler: SchedulerCounts, num_blocks: int) -> float:
    """Return the mean share of the pool in use over the steps in which a row was kept out."""
    steps = scheduler.steps_short_of_memory
    return scheduler.blocks_held_when_short / (steps * num_blocks) if steps else 0.0


def _plain(value: object) -> PlainValue:
    """Return a value as JSON can hold it."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)
