"""The report of a job: the engine's figures, completed with what only the job knows."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pagedrun.paged.job.tally import Tally
from pagedrun.paged.report.record.advice import advise
from pagedrun.paged.values.option_names import as_flag, spelled

_ENGINE_KEYS = {  # what the report holds for a job of which no row reached the engine: zeros
    "tokens": (
        "prompt",
        "cached",
        "computed",
        "generated",
        "generated_copied",
        "preempted_recomputed",
    ),
    "time": (
        "load_s",
        "compile_s",
        "plan_s",
        "run_s",
        "prompt_tokens_per_s",
        "generated_tokens_per_s",
    ),
    "kv": (
        "block_size",
        "num_blocks",
        "bytes_per_token",
        "pool_bytes",
        "peak_blocks",
        "utilization_at_peak",
        "tail_waste",
        "tail_waste_expected",
        "contiguous_utilization",
        "contiguous_max_requests",
        "paged_max_requests",
        "mean_use_when_short",
        "short_of_blocks",
    ),
    "prefix": (
        "hit_tokens",
        "hit_rate",
        "achievable_hit_rate",
        "block_hit_rate",
        "possible_hit_rate",
        "partial_hit_tokens",
        "duplicate_rows",
        "hits",
        "misses",
        "evictions",
        "shared_blocks_peak",
        "bytes_saved",
        "seconds_saved",
        "attention_bytes_read",
        "attention_bytes_without_sharing",
    ),
    "copy_on_write": ("forks", "block_copies"),
    "preemptions": ("swap", "recompute"),
    "memory": ("weights", "kv_pool", "activations_peak", "other", "free", "device_total"),
}


def empty_engine_report() -> dict[str, Any]:
    """Return the engine's part of the report for a run in which it had nothing to do."""
    report: dict[str, Any] = {name: dict.fromkeys(keys, 0) for name, keys in _ENGINE_KEYS.items()}
    return {**report, "timeline": [], "config": {}, "hardware": {}}


def job_report(
    engine_report: Mapping[str, Any],
    tally: Tally,
    *,
    template_advice: Mapping[str, Any] | None = None,
    ignore_eos: bool = False,
) -> dict[str, Any]:
    """Return the whole report, rows first, what is off last.

    `template_advice` is what `TemplateAdvisor` found, None if it was not asked. With `ignore_eos`
    answers were meant to be as long as they may be.
    """
    report: dict[str, Any] = {"rows": tally.rows()}
    accuracy = tally.accuracy()
    if accuracy is not None:
        report["accuracy"] = accuracy
    report.update(engine_report)
    report["finish_reasons"] = dict(tally.finish_reasons)
    report["errors"] = dict(tally.errors)
    report["template_advice"] = template_advice
    report["advice"] = [
        {**asdict(each), "sentence": spelled(each.sentence, as_flag)}
        for each in advise(report, ignore_eos=ignore_eos)
    ]
    return report
