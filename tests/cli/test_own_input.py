"""Rows of one's own want a model; the bundled prompts have theirs."""

import json
import shutil
from pathlib import Path

import pytest

from pagedrun.recipes.demo import demo_prompts_path
from tests.support.command import Command


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("rows.jsonl")
    path.write_text('{"prompt": "Why is the sky blue?"}\n')
    return path


@pytest.mark.parametrize("name", ["generate", "plan", "show"])
@pytest.mark.parametrize("source", ["rows.jsonl", "-", "edited.jsonl", "missing.jsonl"])
def test_without_a_model_nothing_is_done(
    rows: Path, pagedrun: Command, name: str, source: str
) -> None:
    """Bundled prompts that were edited are rows of one's own too."""
    Path("edited.jsonl").write_bytes(demo_prompts_path().read_bytes()[:-1] + b" ")
    status, out, err = pagedrun(name, source, "--quiet")
    assert (status, out) == (2, "")
    assert err.startswith("Error: --model is missing: pass a model folder, a name on the hub such")
    assert "a .gguf file, or demo for the bundled model" in err
    assert {path.name for path in Path().iterdir()} == {"rows.jsonl", "edited.jsonl"}


@pytest.mark.parametrize("name", ["generate", "plan", "show"])
@pytest.mark.parametrize("model", [(), ("--model", "demo")])
@pytest.mark.parametrize("question", ["Why is the sky blue?", "Name three colours.", "Why?"])
def test_a_question_in_place_of_a_file_leads_to_ask(
    rows: Path, pagedrun: Command, name: str, model: tuple[str, ...], question: str
) -> None:
    status, out, err = pagedrun(name, question, *model)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert f"pagedrun ask '{question}'" in err


@pytest.mark.parametrize("name", ["my rows.jsonl", "./my rows", "data/row?", "nope.csv"])
def test_the_name_of_a_file_that_is_not_there_is_no_question(
    rows: Path, pagedrun: Command, name: str
) -> None:
    status, _, err = pagedrun("generate", name, "--model", "demo")
    assert (status, "pagedrun ask" in err) == (2, False)


def test_a_file_whose_name_reads_like_a_question_is_read(rows: Path, pagedrun: Command) -> None:
    shutil.copy(rows, "Who are you")
    _, _, err = pagedrun("generate", "Who are you", "--model", "demo")
    assert "pagedrun ask" not in err
    assert "Who are you has an unknown ending" in err


@pytest.mark.parametrize(
    ("flag", "way_out"),
    [
        ("--json-schema", "--json-schema @rows.jsonl"),
        ("--grammar", "--grammar @rows.jsonl"),
        ("--regex", '--regex "$(cat rows.jsonl)"'),
        ("--chat-template", "--chat-template @rows.jsonl"),
        ("--system", "--system @rows.jsonl"),
        ("--prompt-template", "--prompt-template @rows.jsonl"),
    ],
)
def test_the_name_of_a_file_in_place_of_a_text_is_asked_about(
    rows: Path, pagedrun: Command, flag: str, way_out: str
) -> None:
    status, out, err = pagedrun("generate", rows, "--model", "demo", flag, "rows.jsonl")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert way_out in err
    assert {path.name for path in Path().iterdir()} == {"rows.jsonl"}


def test_a_copy_of_the_bundled_prompts_is_answered_too(rows: Path, pagedrun: Command) -> None:
    """As those of another installation are."""
    shutil.copy(demo_prompts_path(), "copy.jsonl")
    status, _, err = pagedrun("generate", "copy.jsonl", "--limit", "2", "--max-tokens", "2")
    assert (status, "No --model: using the bundled demo model" in err) == (0, True)


def test_it_names_what_is_in_the_cache(
    rows: Path, pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    for name in ("models--org--small", "models--org--half", "datasets--org--rows"):
        (cache / name / "snapshots" / "1").mkdir(parents=True)
        if name != "models--org--half":
            (cache / name / "snapshots" / "1" / "config.json").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    err = pagedrun("plan", rows)[2]
    assert err.endswith("In the hub's cache are org/small.\n")


def test_the_demo_answers_what_it_is_asked_to(rows: Path, pagedrun: Command) -> None:
    status, _, err = pagedrun("generate", rows, "--model", "demo", "--max-tokens", "3", "--quiet")
    assert (status, err) == (0, "")
    manifest = json.loads(Path("rows.out.jsonl.run.json").read_text())
    assert manifest["parameters"]["model"]["origin"] == "flag"


def test_a_revision_of_the_demo_is_refused(rows: Path, pagedrun: Command) -> None:
    status, _, err = pagedrun("plan", rows, "--model", "demo", "--revision", "main")
    assert status == 2
    assert "--revision" in err


def test_a_recipe_may_name_the_model(rows: Path, pagedrun: Command) -> None:
    Path("r.yaml").write_text("model: demo\nmax_tokens: 2\n")
    assert pagedrun("plan", rows, "--recipe", "r.yaml", "--quiet")[0] == 0
