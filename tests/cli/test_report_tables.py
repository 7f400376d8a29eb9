"""The memory report on a terminal, in a pipe, wide and narrow."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagedrun.cli.report import draw_report, summary
from pagedrun.paged.job.job import JobResult
from pagedrun.paged.job.report_file import empty_engine_report

REPORT: dict[str, Any] = {
    "rows": {"total": 1200, "ok": 1198, "failed": 2, "skipped": 0},
    "accuracy": {"expected": 400, "correct": 398},
    "tokens": {
        "prompt": 1_234_567,
        "cached": 1_000_000,
        "computed": 234_567,
        "generated": 65_432,
        "preempted_recomputed": 321,
    },
    "time": {
        "load_s": 1.25,
        "compile_s": 0.5,
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
    },
    "prefix": {
        "hit_tokens": 1_000_000,
        "hit_rate": 0.81,
        "achievable_hit_rate": 0.83,
        "hits": 62_500,
        "misses": 14_660,
        "shared_blocks_peak": 13,
        "bytes_saved": 65_536_000_000,
        "attention_bytes_read": 1,
        "attention_bytes_without_sharing": 2,
    },
    "copy_on_write": {"forks": 24, "block_copies": 17},
    "preemptions": {"swap": 5, "recompute": 6},
    "memory": {
        "weights": 1_200_000,
        "kv_pool": 2_097_152_000,
        "activations_peak": 50_000_000,
        "other": 10_000_000,
        "device_total": 16 * 2**30,
    },
    "finish_reasons": {"stop": 900, "length": 298, "error": 2},
    "timeline": [],
    "config": {},
    "hardware": {},
}
FACTS = [
    "1,234,567",
    "1,000,000",
    "234,567",
    "65,432",
    "prompt speed 6,172.8 tokens/s, cached ones included",
    "generation speed 327.2 tokens/s",
    "load 1.25s, compile 0.50s, plan 0.50s, run 3m20s",
    "398 of 400 answers as expected (99.5%)",
    "weights 1.1 MiB",
    "KV pool 2.0 GiB",
    "activations, at peak 47.7 MiB",
    "other 9.5 MiB",
    "2,000 of 16 tokens, 1.0 MiB each, 2.0 GiB in all",
    "1,500 blocks (75.0% of the pool)",
    "98.5% of the slots held a token, tail waste 1.5%",
    "24.4% utilisation, 15 requests at once",
    "61 requests at once",
    "81.0% of prompt tokens; 83.0% was achievable",
    "shared blocks at peak 13",
    "61.0 GiB",
    "24 forks, 17 blocks copied",
    "5 by swap, 6 by recompute (321 tokens again)",
    "stop 900 (75.0%)",
    "length 298 (24.8%)",
    "error 2 (0.2%)",
]


def drawn(report: dict[str, Any], width: int, **settings: Any) -> str:
    stream = io.StringIO()
    draw_report(report, Console(file=stream, width=width, **settings))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 140])
def test_every_fact_is_there_at_any_width_without_colour(width: int) -> None:
    text = drawn(REPORT, width)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.splitlines())
    flat = " ".join(text.split())
    assert [fact for fact in FACTS if fact not in flat] == []


def test_a_terminal_gets_the_same_words() -> None:
    coloured = drawn(REPORT, 100, force_terminal=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == drawn(REPORT, 100)


def test_no_colour_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", drawn(REPORT, 100, force_terminal=True))


def test_a_run_without_rows_for_the_engine_can_be_drawn() -> None:
    text = drawn({**empty_engine_report(), "finish_reasons": {"error": 3}}, 80)
    assert "accuracy" not in text
    assert "error" in text


def test_the_summary_says_where_to_look() -> None:
    result = JobResult(REPORT, 2, Path("o.report.json"), None)
    assert summary(result, "o.jsonl") == (
        "1200 rows: 1198 ok, 2 failed (see their error) → o.jsonl; report in o.report.json"
    )
    assert "standard output" in summary(JobResult(REPORT, 0, None, None), "-")
