"""Input that is wrong in all rows alike is refused at once, and nothing is left behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import Command

Refused = Callable[..., str]
QUESTIONS = "question,answer\nWhy?,Because.\nAnd you?,Fine.\n"


@pytest.fixture
def refused(pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Answer a file of these contents; return the error, and check that nothing was written."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, text: str, *flags: str) -> str:
        Path(name).write_text(text)
        status, out, err = pagedrun("generate", name, "--model", "demo", "--quiet", *flags)
        assert (status, out) == (2, ""), err
        assert [path.name for path in Path().iterdir()] == [name]
        return err

    return run


def test_a_table_without_a_prompt_names_its_columns_and_the_flag(refused: Refused) -> None:
    assert refused("rows.csv", QUESTIONS) == (
        "Error: rows.csv: no row has a prompt, messages or token ids; its columns are question, "
        "answer; pass --prompt-field question, or --prompt-template '{{ question }}' with more "
        "around it\n"
    )


def test_it_is_found_before_the_model_is_opened(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr("pagedrun.paged.job.model.LocalModel", opened)
    refused("rows.csv", "question,answer\n" + "Why?,Because.\n" * 10_000)


def test_a_field_that_no_row_has(refused: Refused) -> None:
    err = refused("rows.csv", QUESTIONS, "--prompt-field", "questions")
    assert err.startswith("Error: rows.csv: no row has a column questions; its columns are ques")


def test_a_template_that_asks_for_what_no_row_has(refused: Refused) -> None:
    err = refused("rows.csv", QUESTIONS, "--prompt-template", "{{ title }}: {{ question }}")
    assert "all 2 rows fail alike, the first in line 2: " in err
    assert "'title'" in err
    assert "its columns are question, answer; pass --prompt-field question" in err


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["not json", "nor this"], "all 2 rows fail alike, the first in line 1: "),
        ([json.dumps({"prompt": "long " * 3000})] * 3, "all 3 rows fail alike"),
        ([json.dumps({"a b": "x", "n2": 3})] * 2, "; pass --prompt-field 'a b'\n"),
        ([json.dumps({f"c{n}": n for n in range(12)})] * 2, "c6, c7 and 4 more\n"),
    ],
)
def test_other_things_that_all_rows_have(refused: Refused, rows: list[str], why: str) -> None:
    assert why in refused("rows.jsonl", "\n".join(rows))


@pytest.mark.parametrize(
    "rows",
    [
        ['{"question": "one row may be wrong by itself"}'],
        ["not json", '{"question": "wrong in another way"}'],
        ['{"question": "no prompt"}', '{"prompt": "who?"}'],
        ['{"prompt": "who?", "top_p": 7}'] * 2,
    ],
)
def test_anything_else_gets_its_error_rows(
    pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("\n".join(rows))
    flags = ("--model", "demo", "--quiet", "--max-tokens", "2")
    assert pagedrun("generate", "rows.jsonl", *flags)[0] == 3
    assert len(Path("rows.out.jsonl").read_text().splitlines()) == len(rows)


@pytest.mark.parametrize("template", ["About {question}", "{{ answer }} { question }"])
def test_a_column_in_single_braces_is_asked_about(refused: Refused, template: str) -> None:
    err = refused("rows.csv", QUESTIONS, "--prompt-template", template)
    assert err.startswith("Error: --prompt-template has {question} in single braces")
    assert "did you mean {{ question }}?" in err


def test_a_recipe_with_a_column_in_single_braces_is_named(
    pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(QUESTIONS)
    Path("r.yaml").write_text("prompt_template: About {question}\n")
    status, _, err = pagedrun("plan", "rows.csv", "--model", "demo", "--recipe", "r.yaml")
    assert (status, "r.yaml line 1" in err) == (2, True)


@pytest.mark.parametrize(
    ("template", "is_told"),
    [
        ("Hello", True),
        ("Hello {name}", True),
        ("{{ row | tojson }}", False),
        ("{{ row.question }}", False),
        ("{% if answer %}a{% endif %}", False),
    ],
)
def test_a_template_without_a_column_is_told_of(
    pagedrun: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    is_told: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(QUESTIONS)
    flags = ("--model", "demo", "--prompt-template", template)
    status, _, err = pagedrun("show", "rows.csv", *flags)
    assert status == 0
    warnings = [line for line in err.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == is_told
    assert all("uses no column of the rows" in line for line in warnings)


def test_plan_refuses_it_too(
    pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(QUESTIONS)
    status, _, err = pagedrun("plan", "rows.csv", "--model", "demo", "--quiet")
    assert status == 2
    assert "its columns are question, answer" in err
