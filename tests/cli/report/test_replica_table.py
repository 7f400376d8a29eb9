"""The table of replicas on screens and in pages, whatever a report says of them."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from pagedrun.cli.page.run_page import run_document
from pagedrun.cli.report.end_of_run import draw_short_report
from pagedrun.cli.report.replica_table import MOST_SHOWN, draw_replicas, replica_table
from pagedrun.cli.report.report import draw_report
from pagedrun.paged.metrics.report_sections import JobReport
from tests.cli.report.full_report import REPORT
from tests.cli.report.replicas import dead, replica


def drawn(replicas: list[Any], width: int) -> list[str]:
    stream = io.StringIO()
    draw_replicas({"replicas": replicas}, Console(file=stream, width=width), width)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 140])
def test_each_replica_and_the_total_fit_the_screen(width: int) -> None:
    nodes = [f"10.20.30.{number}" for number in range(3)]
    lines = drawn([replica(number, node=nodes[number]) for number in range(3)], width)
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "total"]
    assert "3,003" in lines[-1]  # rows
    assert ("75.0%" in lines[-1]) == (width > 40)
    assert ("10.20.30.2" in lines[4]) == (width > 40)
    assert ("3.0 MiB" in lines[-1]) == (width > 80)


def test_of_many_replicas_the_first_are_shown_and_the_total_is_that_of_all() -> None:
    lines = drawn([replica(number) for number in range(1000)], 80)
    assert len(lines) == 2 + MOST_SHOWN + 3
    assert lines[-1] == f"  and {1000 - MOST_SHOWN} more, listed in the report"
    assert "1,499,500" in lines[-2]


def test_a_dead_one_has_its_cause_and_no_pool_and_the_causes_of_many_are_cut() -> None:
    hostile = "SIGKILL \x1b[2J[/red]" + "x" * 300
    lines = drawn([replica(0), *(dead(number, hostile) for number in range(1, 6))], 80)
    assert lines[3].split() == ["1", "1,001", "500", "75.0%", "7,000", "gone"]
    assert [line for line in lines if "replica 1 died: SIGKILL \\x1b[2J[/red]" in line]
    assert lines[-1] == "  and 2 more died, listed in the report"
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    "found", [None, 5, [], [7], {"number": 1}, [{"number": float("nan"), "kv": 3, "rows": "x"}]]
)
def test_a_report_that_makes_no_sense_is_no_error(found: Any) -> None:
    table = replica_table({"replicas": found})
    if table is not None:
        assert table["lines"][0][:3] == ["0", "0", "0"]


def test_the_report_on_the_screen_has_it_and_the_short_one_says_where() -> None:
    times = REPORT["time"].copy()
    del times["compile_s"]  # replicas compile while they load
    many: JobReport = {**REPORT, "time": times, "replicas": [replica(0), dead(1, "SIGKILL")]}
    stream = io.StringIO()
    draw_report(many, Console(file=stream, width=80))
    full = stream.getvalue()
    assert "Replicas\n" in full
    assert "replica 1 died: SIGKILL" in full
    assert "compile" not in full
    stream = io.StringIO()
    draw_short_report(many, Console(file=stream, width=80))
    assert "1 of them died" in stream.getvalue()
    stream = io.StringIO()
    draw_report(REPORT, Console(file=stream, width=80))
    assert "Replicas" not in stream.getvalue()


def test_a_page_has_it_with_all_replicas_and_hostile_causes_as_text() -> None:
    replicas = [*(replica(number) for number in range(40)), dead(40, "<script>x</script>")]
    html = run_document({**REPORT, "replicas": replicas}, None, "out.jsonl").html()
    (section,) = re.findall(r'<section class="panel" id="replicas">.*?</section>', html, re.S)
    assert section.count("<tr") == 1 + 41 + 1
    assert "&lt;script&gt;x" in section
    assert "<script>" not in section
    assert 'id="replicas"' not in run_document(REPORT, None, "out.jsonl").html()
