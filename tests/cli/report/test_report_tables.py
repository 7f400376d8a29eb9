"""The memory report on a terminal, in a pipe, wide and narrow."""

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagedrun.cli.report.end_of_run import draw_short_report
from pagedrun.cli.report.report import draw_advice, draw_report, summary
from pagedrun.cli.report.report_figures import sparkline
from pagedrun.paged.job.job import JobResult
from pagedrun.paged.job.output.side_files import job_report
from pagedrun.paged.job.progress import Tally
from pagedrun.paged.metrics.report_sections import JobReport, empty_engine_report
from tests.cli.report.full_report import REPORT, point

FACTS = [
    "rows 1,200",
    "failed 2 0.2%; reasons under error",
    "nan_logits 2",
    "stop 900 75.1% at their end or a stop string",
    "length 298 24.9% cut at max_tokens",
    "accuracy 99.5% 398 of 400 as expected",
    "prompt tokens 1,234,567",
    "taken from the cache 1,000,000",
    "computed 234,567",
    "computed again 321 after preemptions",
    "generated tokens 65,432",
    "of these copied 78 from duplicate rows",
    "load 1.25 s",
    "compile 0.50 s long in the first run on a machine",
    "run 3m20s",
    "prompt tokens/s 6,173 including those from the cache",
    "generated tokens/s 327",
    "weights 1.1 MiB 16 bits a weight; on disk 329.6 KiB, 4.5 bits a weight",
    "KV pool 2.0 GiB",
    "activations 47.7 MiB at peak",
    "everything else 9.5 MiB",
    "memory of the machine 16.0 GiB",
    "blocks 2,000 of 16 tokens, 1.0 MiB each",
    "in use at peak 1,500 75.0% of the pool",
    "utilization at peak 98.5% of slots in use",
    "internal fragmentation 1.5% at half a block for each row: 1.3%",
    "Advice the pool was [red]too small",
    "in use, step by step ▁▅█▂",
    "while short of blocks 97.2% mean use while a row had to wait",
    "requests at once 61",
    "if contiguous 15 in the same bytes, 24.4% utilized",
    "hit rate 81.0% of prompt tokens; 83.0% was achievable",
    "duplicate rows 4 identical to another row; computed once",
    "shared blocks at peak 13",
    "KV not computed again 61.0 GiB",
    "KV read by attention 1.0 GiB instead of 4.0 GiB",
    "copy on write 17 blocks copied, 24 forks",
    "preemptions 11 5 by swap, 6 by recompute",
]


def drawn(report: JobReport, width: int, **settings: Any) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, **settings)
    draw_report(report, console)
    draw_advice(report, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 140])
def test_every_fact_is_there_at_any_width_without_colour(width: int) -> None:
    text = drawn(REPORT, width)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.splitlines())
    flat = " ".join(text.split())
    assert [fact for fact in FACTS if fact not in flat] == []


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_terminal_gets_the_same_words_between_rules(width: int) -> None:
    coloured = drawn(REPORT, width, force_terminal=True)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert all(len(line) <= width for line in bare.splitlines())
    assert re.sub(r"^── (.*?) ─+$", r"\1", bare, flags=re.MULTILINE) == drawn(REPORT, width)


def test_values_end_in_one_column_and_lines_without_blanks() -> None:
    lines = drawn(REPORT, 80).splitlines()
    ends = {re.match(r"  .{25} {,11}\S+( [KMGB]\w*)?(?=  |$)", line) for line in lines}
    ends.discard(None)
    assert {match.end() for match in ends if match} == {39}
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_narrow_screen_keeps_the_sparkline_on_one_line() -> None:
    records = [point(step) for step in range(500)]
    for width in (50, 60, 80):
        text = drawn({**REPORT, "timeline": records}, width)
        assert len([line for line in text.splitlines() if "▁" in line or "█" in line]) == 1


@pytest.mark.parametrize(
    ("values", "bars"),
    [([0, 0], "▁▁"), ([1, 8], "▂█"), ([0, 7, 0, 0, 0, 0, 0, 0], "█▁▁▁"), ([5], "█")],
)
def test_a_bar_shows_the_largest_value_of_its_stretch(values: list[float], bars: str) -> None:
    assert sparkline(values, 4) == bars


def test_no_colour_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", drawn(REPORT, 100, force_terminal=True))


def test_what_did_not_happen_is_not_told() -> None:
    quiet: JobReport = {
        **REPORT,
        "rows": {"total": 4, "ok": 4, "failed": 0, "skipped": 0},
        "tokens": {**REPORT["tokens"], "preempted_recomputed": 0, "generated_copied": 0},
        "prefix": {**REPORT["prefix"], "duplicate_rows": 0, "attention_bytes_read": 2**32},
        "kv": {**REPORT["kv"], "mean_use_when_short": 0.0},
        "preemptions": {"swap": 0, "recompute": 0},
    }
    text = drawn(quiet, 80)
    for words in (
        "failed",
        "nan_logits",
        "after preemptions",
        "these copied",
        "short of",
        "duplicate rows",
    ):
        assert words not in text
    assert "KV read by attention" not in text
    assert re.search(r"preemptions +0$", text, re.MULTILINE)


def test_a_run_without_rows_for_the_engine_tells_how_they_ended_and_nothing_else() -> None:
    errors = Counter({"missing_prompt": 2, "invalid_json_line": 1})
    tally = Tally(total=3, failed=3, finish_reasons=Counter({"error": 3}), errors=errors)
    assert drawn(job_report(empty_engine_report(), tally), 80).split("\n") == [
        "Answers",
        "  rows                                3",
        "  failed                              3  100.0%; reasons under error",
        "    missing_prompt                    2",
        "    invalid_json_line                 1",
        "",
    ]


def test_the_summary_says_where_to_look() -> None:
    result = JobResult(REPORT, 2, Path("o.report.json"), None)
    assert summary(result, "o.jsonl") == [
        "1,200 rows: 1,198 ok, 2 failed → o.jsonl",
        "3m27s in all; 1,234,567 prompt tokens (1,000,000 cached), 65,432 generated",
        "memory report → o.report.json",
    ]
    one: JobReport = {**REPORT, "rows": {"total": 1, "ok": 1, "failed": 0, "skipped": 0}}
    assert summary(JobResult(one, 0, None, None), "-")[0] == "1 row: 1 ok → standard output"


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ({"ok": 10, "failed": 0, "skipped": 90}, "100 rows: 100 ok, 90 of them before → o"),
        ({"ok": 0, "failed": 0, "skipped": 100}, "100 rows: 100 ok, 100 of them before → o"),
        (
            {"ok": 8, "failed": 2, "skipped": 90, "skipped_failed": 1},
            "100 rows: 97 ok, 89 of them before; 3 failed, 1 of them before → o",
        ),
    ],
)
def test_rows_of_an_earlier_run_are_counted(rows: Any, wanted: str) -> None:
    """A resumed run said 10 ok of 100, and nothing of those that failed before."""
    counts: Any = {"total": 100, **rows}
    report: JobReport = {**REPORT, "rows": counts}
    assert summary(JobResult(report, 0, None, None), "o")[0] == wanted
    stream = io.StringIO()
    draw_short_report(report, Console(file=stream, width=80))
    shown = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    ok = rows["ok"] + rows["skipped"] - rows.get("skipped_failed", 0)
    assert shown[1].startswith(f"ok {ok} of 100, ")
    assert any(line.startswith("failed 3 3.0%, 1 of them before") for line in shown) == (ok == 97)


def test_a_run_that_computed_nothing_says_how_long_it_took_and_no_tokens() -> None:
    tally = Tally(total=3, skipped=3)
    report = job_report(empty_engine_report(), tally)
    report["time"]["wall_s"] = 0.25
    assert summary(JobResult(report, 0, None, None), "o") == [
        "3 rows: 3 ok, 3 of them before → o",
        "0.25 s in all",
    ]
