"""Figures of replicas for tests of screens."""

from typing import Any

from pagedrun.paged.metrics.report_sections import ReplicaFigures


def replica(number: int, **changes: Any) -> ReplicaFigures:
    figures: dict[str, Any] = {
        "number": number,
        "node": "127.0.0.1",
        "rows": 1000 + number,
        "steps": 50,
        "prompt_tokens": 2000,
        "cached_tokens": 1500,
        "computed_tokens": 500,
        "generated_tokens": 7000,
        "joined_s": 0.0,
        "left_s": 9.0,
        "load_s": 1.0,
        "kv": {
            "num_blocks": 400,
            "pool_bytes": 2**20,
            "peak_blocks": 100,
            "utilization_at_peak": 0.5,
        },
    }
    return {**figures, **changes}  # type: ignore[typeddict-item]


def dead(number: int, cause: str) -> ReplicaFigures:
    found = replica(number, died=cause)
    del found["kv"]
    return found
