"""The screen at the end of a run: answers first, hostile ones too, and memory on eight lines."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pagedrun.cli.options.generate_flags import ReportView
from pagedrun.cli.progress.answer_lines import MAX_LINES
from pagedrun.cli.report.end_of_run import draw_end
from pagedrun.cli.report.report import draw_report, summary
from pagedrun.paged.job.job import JobResult
from pagedrun.paged.job.progress import AnswerPreview, FirstAnswers
from pagedrun.paged.metrics.advice import advise
from pagedrun.paged.metrics.report_sections import JobReport
from tests.cli.report.full_report import REPORT

HOSTILE = "\x1b[2J\x1b]0;title\x07[/red]\u202e\u200b\r\n\n<a>"
ANSWERS = (
    AnswerPreview(0, "plain", "Paris."),
    AnswerPreview(1, f"id {HOSTILE}", f"{HOSTILE} first\nsecond\t\x00third"),
    AnswerPreview(2, "日本語のとても長い識別子でありますよね", "東京は日本の首都です。" * 40),
    AnswerPreview(3, "❤️👩‍👩‍👧🇩🇪", "🇩🇪❤️" * 200),
    AnswerPreview(4, "word", "x" * 2000),
    AnswerPreview(5, 7, None, f"no prompt {HOSTILE}"),
    AnswerPreview(6, "none", " \n "),
)


def end(
    width: int, report: JobReport = REPORT, view: ReportView = ReportView.SHORT, **settings: Any
) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, **settings)
    draw_end(JobResult(report, 2, Path("o.report.json"), None, None, ANSWERS), "o", view, console)
    return stream.getvalue()


def section(text: str, title: str) -> list[str]:
    """Return the lines between a title and the next line that is not indented."""
    lines = text.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(title)) + 1
    end = next(place for place in range(begin, len(lines)) if not lines[place].startswith("  "))
    return lines[begin:end]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_hostile_answers_neither_leave_their_lines_nor_reach_the_terminal(width: int) -> None:
    text = end(width)
    shown = section(text, "First answers")
    assert set(text) & {"\x1b", "\x07", "\x00", "\r", "\u202e", "\u200b"} == set()
    assert "[/red]" in "".join(text.split())
    assert [line for line in shown if cell_len(line) > width] == []
    # An answer begins where an id does: every line that is not indented further is one.
    begins = [place for place, line in enumerate(shown) if line[2] != " "]
    assert len(begins) == len(ANSWERS)
    assert max(b - a for a, b in zip(begins, [*begins[1:], len(shown)], strict=True)) <= MAX_LINES
    assert shown[begins[0]].split() == ["plain", "Paris."]
    assert shown[begins[5]].split()[:3] == ["7", "failed:", "no"]
    assert shown[begins[6]].endswith("(empty)")
    assert sum(line.endswith("…") for line in shown) >= 3


def test_answers_come_before_rows_before_memory_on_eight_lines() -> None:
    crowded: JobReport = {**REPORT, "memory": {**REPORT["memory"], "states": 2**20}}
    for width in (80, 140):
        text = end(width, crowded)
        titles = re.findall(r"^(?:First answers|Rows|Memory|Advice|1,200 rows)", text, re.M)
        assert titles == ["First answers", "Rows", "Memory", "Advice", "1,200 rows"]
        rows = [" ".join(line.split()) for line in section(text, "Rows")]
        assert rows[0] == "ok 1,198 of 1,200"
        assert rows[1].startswith("failed 2 0.2%")
        assert "cut at max_tokens 298 24.9% of the answers" in rows
        memory = [" ".join(line.split()) for line in section(text, "Memory")]
        assert len(memory) == 8
        assert memory[:2] == ["weights 1.1 MiB", "KV pool 2.0 GiB 75.0% in use at peak"]
        assert "hit rate 81.0% of prompt tokens; 83.0% was achievable" in memory


def test_a_librarys_caches_are_not_called_states_of_recurrent_layers() -> None:
    own: JobReport = {**REPORT, "memory": {**REPORT["memory"], "states": 2**20}}
    assert "of recurrent layers" in end(80, own)
    library: Any = {**own, "library": {"path": "library"}}
    text = end(80, library)
    assert "caches of Transformers" in text
    assert "of recurrent layers" not in text


def test_a_journal_that_is_kept_is_named() -> None:
    """Else nobody knows what the large file beside a table with failed rows is for."""
    result = JobResult(REPORT, 2, None, None, journal_path=Path("o.csv.journal.jsonl"))
    assert summary(result, "o.csv")[2:] == [
        "rows so far, for --resume --retry-errors → o.csv.journal.jsonl"
    ]


def test_the_full_view_has_the_whole_report() -> None:
    stream = io.StringIO()
    draw_report(REPORT, Console(file=stream, width=80))
    assert stream.getvalue() in end(80, view=ReportView.FULL)
    assert "First answers" in end(80, view=ReportView.FULL)
    assert stream.getvalue() not in end(80)


def test_a_share_is_of_the_same_whole_in_table_and_advice() -> None:
    """The advice counted failed rows among the answers, the table did not."""
    report: JobReport = {**REPORT, "finish_reasons": {"stop": 20, "length": 20, "error": 160}}
    (cut,) = [each for each in advise(report) if each.code == "answers_cut"]
    assert cut.sentence.startswith("50% of the answers were cut at max_tokens")
    stream = io.StringIO()
    draw_report(report, Console(file=stream, width=80))
    assert "50.0% cut at max_tokens" in stream.getvalue()
    assert "50.0% of the answers" in end(80, report)


def test_the_first_answers_are_those_of_the_first_rows() -> None:
    first = FirstAnswers()
    for index in (8, 3, 9, 1, 5, 0, 7):
        first.add(AnswerPreview(index, str(index), ""))
    assert [each.index for each in first.kept()] == [0, 1, 3]
