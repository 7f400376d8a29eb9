"""`pagedrun show` as a user meets it."""

import json
import shlex
import shutil
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagedrun.cli.report.shown_prompt import draw_prompt
from pagedrun.paged.job.shown_row import PromptPart, ShownRow
from pagedrun.paged.text.prompt_reader import PromptMode
from pagedrun.recipes.demo import demo_model_folder
from tests.support.command import Command

ROWS = (
    {"id": "one", "messages": [{"role": "user", "content": "Who is Alan?"}], "temperature": 0.5},
    {"id": "two", "messages": [{"role": "user", "content": "Who is Alan?"}], "note": "kept"},
    {"id": "long", "prompt": "who " * 3000},
    {"custom_id": 7, "messages": [{"role": "user", "content": "Where is Ida? é日😀"}]},
)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def show(pagedrun: Command, rows: Path) -> Command:
    return partial(pagedrun, "show", rows, "--model", "demo")


def shown(show: Command, *args: object) -> dict[str, Any]:
    status, out, err = show("--json", "--quiet", *args)
    assert (status, err) == (0, "")
    row = json.loads(out)
    assert isinstance(row, dict)
    return row


def test_the_text_is_what_the_template_makes_and_nothing_else_is_on_stdout(show: Command) -> None:
    """All of it, a character of several tokens included."""
    text = "<|im_start|>user\nWhere is Ida? é日😀<|im_end|>\n<|im_start|>assistant\n"
    status, out, err = show("--id", "7")
    assert (status, out) == (0, text + "\n")
    assert "special tokens                      3  <|im_start|> × 2, <|im_end|> × 1" in err
    row = shown(show, "--row", "3")
    assert (row["index"], row["id"], row["line"], row["text"]) == (3, 7, 4, text)
    assert [part["text"] for part in row["parts"] if part["special"]] == [
        *("<|im_start|>", "<|im_end|>", "<|im_start|>")
    ]
    assert row["prompt_tokens"] == len(row["token_ids"])
    ids = show("--id", "7", "--ids", "--quiet")[1].removeprefix(text + "\n")
    assert list(map(int, ids.split())) == row["token_ids"]


def test_rows_that_are_equal_are_counted_as_sharing(show: Command) -> None:
    """The first row is shown by default; the one that fails takes no part."""
    row = shown(show)
    assert row["id"] == "one"
    whole = row["prompt_tokens"]
    assert row["shared"][-1] == {"tokens": whole, "rows": 2}
    assert (row["shared"][0]["rows"], row["rows"]) == (3, 4)
    assert all(part["shared"] for part in row["parts"])


def test_each_parameter_says_where_it_is_from(show: Command) -> None:
    sampling = shown(show, "--max-tokens", "9", "--top-p", "0.5")["sampling"]
    assert sampling["temperature"] == {"value": 0.5, "origin": "row"}
    assert sampling["max_tokens"] == {"value": 9, "origin": "flag"}
    assert sampling["seed"] == {"value": 0, "origin": "default"}
    clamped = shown(show, "--row", "1", "--max-tokens", "90", "--max-model-len", "70")
    assert clamped["max_tokens_clamped"]
    assert clamped["sampling"]["max_tokens"]["origin"] == "room"
    assert clamped["input"] == {"note": "kept"}


def test_what_was_cut_is_gone_and_counted(show: Command) -> None:
    row = shown(show, "--id", "long", "--raw", "--on-overlong", "truncate-left", "--max-tokens", 8)
    assert (row["truncated_from"], row["prompt_tokens"]) == ("left", row["max_model_len"] - 8)
    assert row["text"].endswith("who ")
    assert len(row["text"]) < 3000 * 4
    err = show("--id", "long", "--on-overlong", "truncate-right")[2]
    assert "from the prompt's end" in " ".join(err.split())


def test_a_row_that_cannot_be_asked_says_why_and_exits_3(show: Command) -> None:
    status, out, err = show("--row", "2")
    assert (status, out) == (3, "")
    assert "Error: row 2, line 3: the prompt has" in err
    status, out, _ = show("--row", "2", "--json")
    assert status == 3
    row = json.loads(out)
    assert (row["text"], row["error"]["code"]) == (None, "prompt_too_long")
    assert set(row) == set(shown(show))


def test_a_number_that_is_an_id_is_told_how_to_be_one(show: Command) -> None:
    status, _, err = show("--row", "7")
    assert (status, err.endswith("; --id 7 is the row with that id\n")) == (2, True)


@pytest.mark.parametrize("args", [("--row", "id:7"), ("--id", "7"), ("--row", "3")])
def test_row_takes_an_index_or_an_id_as_inspect_cache_does(
    show: Command, args: tuple[str, ...]
) -> None:
    assert shown(show, *args)["index"] == 3
    assert shown(show, "--row", "two")["id"] == "two"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--row", "4"], "--row 4: there is no such row among 4 rows of "),
        (["--row", "id:one-two"], "--id one-two: there is no such row among 4 rows of "),
        (["--id", "three"], "--id three: there is no such row among 4 rows of "),
        (["--row", "3", "--limit", "2"], "--row 3: there is no such row among the first 2 rows "),
        (["--row", "1", "--id", "one"], "--row and --id exclude each other"),
    ],
)
def test_a_row_that_is_not_there_is_refused(show: Command, args: list[str], sentence: str) -> None:
    status, out, err = show(*args, "--quiet")
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {sentence}")
    assert err.count("\n") == 1


def test_no_weights_are_needed(pagedrun: Command, rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    status, out, _ = pagedrun("show", rows, "--model", folder, "--system", "Be brief.")
    assert (status, out.startswith("<|im_start|>system\nBe brief.<|im_end|>")) == (0, True)


def test_plan_says_how_to_see_a_prompt(pagedrun: Command, rows: Path) -> None:
    """With the flags that decide it, quoted as a shell wants them."""
    _, _, err = pagedrun(
        "plan", rows, "--model", "demo", "--system", "Be brief.", "--num-blocks", 99
    )
    _, _, command = err.splitlines()[-1].partition("See a prompt as the model reads it: ")
    words = shlex.split(command)
    assert words[:3] == ["pagedrun", "show", str(rows)]
    assert words[3:] == ["--row", "0", "--model", "demo", "--system", "Be brief."]
    assert pagedrun(*words[1:])[0] == 0


def test_rows_of_all_inputs_can_be_shown(pagedrun: Command, rows: Path) -> None:
    """They are counted over all files, as in the output of a run."""
    other = rows.with_name("other.jsonl")
    other.write_text('{"prompt": "the other"}\n')
    num_rows = len(rows.read_text().splitlines())
    status, out, _ = pagedrun("show", rows, other, "--model", "demo", "--row", num_rows)
    assert (status, "the other" in out) == (0, True)


def test_a_prompt_does_nothing_to_a_terminal() -> None:
    part = PromptPart("\x1b[2J\u202e[red]\n", special=False, shared=False)
    mark = PromptPart("<s>", special=True, shared=False)
    row = ShownRow(
        *(0, "a", 1, "line", PromptMode.RAW, "", (mark, part), (1, 2), 2, 0, None, False, 9, 1),
        *((), (), {}, {}, None),
    )
    stream = StringIO()
    draw_prompt(row, Console(file=stream, force_terminal=True, width=80), ids=False)
    text = stream.getvalue()
    assert "\\x1b[2J\\u202e[red]\n" in text
    assert "\x1b[1;36m<s>" in text
