"""`pagedrun recipes`: what it prints where, and what it never overwrites."""

import json
from functools import partial
from pathlib import Path

import pytest

from pagedrun.recipes.recipe import bundled_names, bundled_path
from tests.support.command import Command


@pytest.fixture
def run(pagedrun: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return partial(pagedrun, "recipes")


@pytest.mark.parametrize("columns", [80, 140])
def test_the_list_fits_its_screen_and_names_all(
    run: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, err = run("list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines if line[0] != " "][1:] == bundled_names()
    assert "(optional)" in out
    assert "\x1b" not in out


def test_the_list_for_scripts(run: Command) -> None:
    status, out, _ = run("list", "--json")
    recipes = json.loads(out)
    assert status == 0
    assert [recipe["name"] for recipe in recipes] == bundled_names()
    assert recipes[0]["columns"] == {"text": "the text to label, here a message to a support desk"}
    assert all(Path(recipe["sample"]).is_file() for recipe in recipes)


@pytest.mark.parametrize("name", bundled_names())
def test_show_prints_the_file(run: Command, name: str) -> None:
    assert run("show", name) == (0, bundled_path(name).read_text(encoding="utf-8"), "")


def test_show_in_colours_is_the_same_text(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, out, _ = run("show", "judge")
    assert "\x1b[" in out
    from rich.text import Text

    assert Text.from_ansi(out).plain.strip() == bundled_path("judge").read_text().strip()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("show", "judge")[1]


def test_show_for_scripts(run: Command) -> None:
    settings = json.loads(run("show", "synthetic", "--json")[1])["settings"]
    assert (settings["n"], settings["temperature"]) == (4, 0.9)


def test_a_name_that_is_none(run: Command) -> None:
    assert run("show", "juge") == (
        2,
        "",
        "Error: juge: no bundled recipe of this name; did you mean judge?\n",
    )
    status, _, err = run("init", "../judge")
    assert status == 2
    assert "no bundled recipe of this name" in err


def test_init_copies_and_says_how_to_run_it(run: Command) -> None:
    status, out, err = run("init", "extract", "some folder/mine")
    assert status == 0
    assert out == (
        "pagedrun generate 'some folder/mine/extract.jsonl' "
        "--recipe 'some folder/mine/extract.yaml' --model MODEL\n"
    )
    assert "some folder/mine/extract.yaml" in err
    copied = Path("some folder/mine/extract.yaml").read_bytes()
    assert copied == bundled_path("extract").read_bytes()
    assert Path("some folder/mine/extract.jsonl").is_file()


@pytest.mark.parametrize("name", ["judge.yaml", "judge.jsonl"])
def test_init_replaces_nothing_and_copies_nothing_then(run: Command, name: str) -> None:
    Path(name).write_text("mine")
    status, out, err = run("init", "judge")
    assert (status, out) == (2, "")
    assert err == f"Error: {name} exists; name another folder, or move the file away\n"
    assert [path.name for path in Path().iterdir()] == [name]
    assert Path(name).read_text() == "mine"


def test_init_into_what_is_no_folder(run: Command) -> None:
    Path("file").write_text("")
    status, _, err = run("init", "judge", "file/sub")
    assert status == 2
    assert "cannot be written (Not a directory)" in err


def test_init_for_scripts_and_quiet(run: Command) -> None:
    _, out, err = run("init", "judge", "--json", "--quiet")
    assert err == ""
    assert json.loads(out)["files"] == ["judge.yaml", "judge.jsonl"]
