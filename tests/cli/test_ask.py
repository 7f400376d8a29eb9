"""`pagedrun ask` as a user meets it."""

import io
import json
import re
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from pagedrun.cli.options.reading import question_text
from pagedrun.cli.report.answer_screen import AnswerWriter
from pagedrun.paged.values.errors import UsageError
from tests.support.command import Command

ASKED = ("--model", "demo", "--max-tokens", "12", "--ignore-eos", "--temperature", "1")


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@pytest.fixture
def ask(pagedrun: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    give_input(monkeypatch, b"")
    return partial(pagedrun, "ask")


def give_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_answer_is_that_of_generate(
    ask: Command, pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed, as a row, and with what was piped in before it."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    messages = [{"role": "user", "content": "a\nb\n\nWho is Alan?"}]
    rows.write_text(json.dumps({"messages": messages}))
    assert pagedrun("generate", rows, "-o", out, *ASKED, "--quiet")[0] == 0
    line = out.read_text()
    give_input(monkeypatch, b"a\nb\n")
    assert ask("Who is Alan?", *ASKED, "--json", "--quiet") == (0, line, "")
    (tmp_path / "b.txt").write_text("a\nb\n")
    status, text, err = ask("Who is Alan?", "--file", tmp_path / "b.txt", *ASKED)
    assert (status, text) == (0, json.loads(line)["text"] + "\n")
    figures = (
        r"12 generated in ([\d.]+) s.*; ([\d.]+) s in all, ([\d.]+) s of it loading the model;"
    )
    told = re.search(figures, err)
    assert told is not None, err
    run_s, wall_s, load_s = map(float, told.groups())
    assert wall_s > run_s + load_s - 0.15  # each is rounded
    assert "cut; raise --max-tokens for more" in err


def test_of_samples_that_vote_the_winner_is_the_answer(ask: Command) -> None:
    """Each sample was printed, and none said which one had won."""
    voting = ("Who is Alan?", *ASKED, "--n", "5", "--vote", "(?s)([aeiou])")
    status, line, _ = ask(*voting, "--json", "--quiet")
    assert status == 0
    row = json.loads(line)
    assert len(row["outputs"]) > 1
    assert ask(*voting, "--quiet") == (0, f"{row['text']}\n", "")


def test_several_answers_and_one_that_cannot_be_asked(ask: Command) -> None:
    status, out, err = ask("Who?", *ASKED, "--n", "2", "--raw")
    assert (status, out.count("\n") >= 2) == (0, True)
    assert "answer 2 of 2:" in err
    status, out, err = ask("who " * 3000, *ASKED, "--json")
    assert (status, json.loads(out)["error"]["code"]) == (2, "prompt_too_long")
    assert err.startswith("Error: the prompt has ")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["Why?"], "--model is missing: pass a model folder, "),
        (["--model", "demo"], "the question is missing; type it after ask, "),
        ([" ", "--model", "demo"], "the question is missing; "),
        (["Why?", "--model", "demo", "--file", "no.txt"], "--file no.txt: the file cannot be read"),
        (["Why?", "--model", "demo", "--recipe", "judge"], "prompt_template (judge.yaml line "),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_sentence(
    ask: Command, args: list[str], sentence: str
) -> None:
    status, out, err = ask(*args)
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {sentence}")
    assert err.count("\n") == 1


def test_input_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    give_input(monkeypatch, b"\xff\xfe")
    with pytest.raises(UsageError, match="standard input is not UTF-8 text"):
        question_text("Why?", [], lambda: None)


def test_a_terminal_gets_safe_text_and_any_other_reader_the_bytes() -> None:
    terminal, pipe = Terminal(), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    for out in (terminal, pipe):
        writer = AnswerWriter(out, None)
        writer.add("a thought", "")
        writer.add("", "\x1b[2J日")
        writer.finish(["\x1b[2J日\n😀"])
    assert terminal.text == "\\x1b[2J日\n😀\n"
    assert isinstance(pipe.buffer, io.BytesIO)
    assert pipe.buffer.getvalue().decode() == "\x1b[2J日\n😀\n"


def test_a_thought_is_shown_on_stderr_alone() -> None:
    out, screen = Terminal(), io.StringIO()
    writer = AnswerWriter(out, Console(file=screen, force_terminal=True, width=80))
    for thought, text in (("hm\x1b[2J", ""), (" yes", ""), ("", "42")):
        writer.add(thought, text)
    writer.finish(["42"])
    assert screen.getvalue() == "\x1b[2mhm\\x1b[2J\x1b[0m\x1b[2m yes\x1b[0m\n\n"
    assert out.text == "42\n"


def test_an_answer_that_is_interrupted_ends_its_line() -> None:
    terminal = Terminal()
    writer = AnswerWriter(terminal, None)
    assert (writer.has_begun, writer.leave()) == (False, "nothing was answered")
    writer.add("", "half")
    assert (writer.has_begun, writer.leave()) == (True, "the answer is incomplete")
    assert terminal.text == "half\n"
