"""Stderr as JSON, from the first line to the last, whoever writes it."""

import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.terminal.json_lines import JsonLines, json_line, json_stderr, wants_json_lines
from tests.support.command import Command
from tests.support.jsonl import write_jsonl


def events_of(text: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in text.splitlines()]
    assert [each for each in events if "event" not in each] == []
    return events


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["generate", "x", "--progress", "json"], True),
        (["generate", "--progress=json", "x"], True),
        (["generate", "--progress", "json", "--progress", "plain"], False),
        (["generate", "--progress"], False),
        (["ask", "--", "--progress=json"], False),
        (["generate", "json"], False),
    ],
)
def test_a_command_line_that_asks_for_json(words: list[str], wanted: bool) -> None:
    assert wants_json_lines(words) == wanted


def test_what_anyone_writes_is_an_event() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.write("Warning: a\nError: b\n\n\x1b[1mbold\x1b[0m\r50%\n")
    lines.write(json_line("phase", phase="run"))
    lines.write('{"not": "an event"}')
    assert len(stream.getvalue().splitlines()) == 5, "a line that is not complete"
    lines.finish()
    assert events_of(stream.getvalue()) == [
        {"event": "warning", "message": "a"},
        {"event": "error", "message": "b"},
        {"event": "note", "message": "bold"},
        {"event": "note", "message": "50%"},
        {"event": "phase", "phase": "run"},
        {"event": "note", "message": '{"not": "an event"}'},
    ]


def test_parts_of_lines_that_threads_write_are_not_mixed() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.write("one ")
    other = threading.Thread(target=lambda: lines.write("two\n"))
    other.start()
    other.join()
    lines.write("more\n")
    assert [each["message"] for each in events_of(stream.getvalue())] == ["two", "one more"]


def test_stderr_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stderr
    with json_stderr(["x", "--progress=json"]):
        inner = sys.stderr
        with json_stderr(["x", "--progress=json"]):
            assert sys.stderr is inner, "wrapped twice"
    assert sys.stderr is before


def generated(pagedrun: Command, folder: Path, *flags: object) -> tuple[int, list[dict[str, Any]]]:
    rows = [{"prompt": "a", "max_tokens": 2}, {"prompt": "b", "max_tokens": 0}]
    source = write_jsonl(folder / "rows.jsonl", rows)
    given = ["--model", "demo", "--progress", "json", "-o", folder / "out.jsonl", *flags]
    status, out, err = pagedrun("generate", source, *given)
    assert out == ""
    return status, events_of(err)


def test_a_run_ends_with_an_event_that_agrees_with_its_report(
    pagedrun: Command, tmp_path: Path
) -> None:
    """Also one with failed rows, a note that it made a page, and a resumed one."""
    status, events = generated(pagedrun, tmp_path, "--html", tmp_path / "page.html")
    assert status == 3
    kinds = [each["event"] for each in events]
    assert kinds.index("end") == len(kinds) - 1
    assert {"phase", "progress", "warning", "note"} <= set(kinds)
    assert "error" not in kinds
    end = events[-1]
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    assert {key: end[key] for key in ("rows", "tokens", "time", "advice")} == {
        key: report[key] for key in ("rows", "tokens", "time", "advice")
    }
    assert end["rows"] == {"total": 2, "ok": 1, "failed": 1, "skipped": 0}
    assert end["report"] == str(tmp_path / "out.jsonl.report.json")
    assert end["time"]["wall_s"] >= end["time"]["run_s"]
    status, events = generated(pagedrun, tmp_path, "--resume")
    *_, progress, end = events
    assert (progress["rows_done"], progress["rows_before"], progress["rows_failed"]) == (2, 2, 1)
    assert end["rows"] == {"total": 2, "ok": 0, "failed": 0, "skipped": 2, "skipped_failed": 1}
    assert end["message"].startswith("2 rows: 1 ok, 1 of them before; 1 failed, 1 of them before")


def test_what_is_refused_ends_with_an_error(pagedrun: Command, tmp_path: Path) -> None:
    for flags in (["--no-such-flag"], ["--temperature", "x"], ["--from", tmp_path / "out.jsonl"]):
        status, events = generated(pagedrun, tmp_path, *flags)
        assert status == 2
        assert sum(each["event"] == "error" for each in events) == 1
        assert all(each["event"] in ("error", "note", "phase") for each in events)


def test_the_configuration_file_may_ask_for_json(
    pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress was JSON, the error that ended the run was not."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "pagedrun").mkdir()
    (tmp_path / "pagedrun" / "config.yaml").write_text("progress: json\n")
    before = sys.stderr
    status, _, err = pagedrun("generate", tmp_path / "none.jsonl", "--model", "demo")
    assert (status, events_of(err)[-1]["event"]) == (2, "error")
    assert not isinstance(sys.stderr, JsonLines)
    assert type(sys.stderr) is type(before)


def test_quiet_says_errors_alone(pagedrun: Command, tmp_path: Path) -> None:
    for wanted in (3, 2):  # a row fails, and the output is there then
        status, events = generated(pagedrun, tmp_path, "--quiet")
        assert (status, [each["event"] for each in events]) == (wanted, ["error"])
