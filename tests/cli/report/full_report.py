"""A report with something in every section."""

from pagedrun.paged.metrics.report_sections import JobReport, TimelinePoint


def point(blocks_used: int) -> TimelinePoint:
    return {
        "t": 0.0,
        "step": 0,
        "running": 0,
        "waiting": 0,
        "blocks_used": blocks_used,
        "blocks_shared": 0,
        "blocks_cached": 0,
        "tokens": 0,
    }


REPORT: JobReport = {
    "rows": {"total": 1200, "ok": 1198, "failed": 2, "skipped": 0},
    "accuracy": {"expected": 400, "correct": 398},
    "tokens": {
        "prompt": 1_234_567,
        "cached": 1_000_000,
        "computed": 234_567,
        "generated": 65_432,
        "generated_copied": 78,
        "preempted_recomputed": 321,
    },
    "time": {
        "load_s": 1.25,
        "compile_s": 0.5,
        "wall_s": 207.4,
        "plan_s": 0.5,
        "run_s": 200.0,
        "prompt_tokens_per_s": 6172.8,
        "generated_tokens_per_s": 327.2,
    },
    "kv": {
        "block_size": 16,
        "num_blocks": 2000,
        "bytes_per_token": 65536,
        "pool_bytes": 2000 * 16 * 65536,
        "peak_blocks": 1500,
        "utilization_at_peak": 0.985,
        "tail_waste": 0.015,
        "contiguous_utilization": 0.244,
        "contiguous_max_requests": 15,
        "paged_max_requests": 61,
        "mean_use_when_short": 0.972,
        "short_of_blocks": 0.41,
        "tail_waste_expected": 0.013,
    },
    "prefix": {
        "hit_tokens": 1_000_000,
        "hit_rate": 0.81,
        "achievable_hit_rate": 0.83,
        "block_hit_rate": 0.82,
        "possible_hit_rate": 0.83,
        "evictions": 0,
        "seconds_saved": 75.5,
        "hits": 62_500,
        "misses": 14_660,
        "shared_blocks_peak": 13,
        "bytes_saved": 65_536_000_000,
        "attention_bytes_read": 2**30,
        "attention_bytes_without_sharing": 2**32,
        "partial_hit_tokens": 9,
        "duplicate_rows": 4,
    },
    "copy_on_write": {"forks": 24, "block_copies": 17},
    "preemptions": {"swap": 5, "recompute": 6},
    "memory": {
        "weights": 1_200_000,
        "kv_pool": 2_097_152_000,
        "activations_peak": 50_000_000,
        "other": 10_000_000,
        "free": 15_000_000_000,
        "device_total": 16 * 2**30,
    },
    "weights": {
        "count": 600_000,
        "stored_bytes": 337_500,
        "stored_bits": 4.5,
        "held_bytes": 1_200_000,
        "held_bits": 16.0,
        "linear_layers": 0,
        "quantized_layers": 0,
        "resident_bytes": 1_200_000,
        "streamed_bytes": 0,
        "passes": 0,
        "bytes_read": 0,
        "wait_share": 0.0,
        "int8_layers": 0,
    },
    "finish_reasons": {"stop": 900, "length": 298, "error": 2},
    "errors": {"nan_logits": 2},
    "timeline": [point(used) for used in (0, 800, 1500, 200)],
    "config": {},
    "hardware": {},
    "template_advice": None,
    "advice": [
        {
            "code": "pool_too_small",
            "sentence": "the pool was [red]too small: raise it",
            "weight": 0.2,
        }
    ],
}
