"""`pagedrun demo`: from any folder, of the installed package, the same outcome whatever is set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun.recipes.demo import demo_prompts_path
from tests.support.command import Command
from tests.support.jsonl import read_jsonl

OUTPUT = "demo.out.jsonl"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.heavy("the whole demo, in a process of its own")
def test_in_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    """In a process of its own; under `make test-installed` the package is the installed one."""
    folder = tmp_path / "empty"
    folder.mkdir()
    command = [sys.executable, "-m", "pagedrun", "demo"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ}, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    rows = read_jsonl(folder / OUTPUT)
    assert len(rows) == 336
    assert all(row["text"] == row["input"]["expected"] for row in rows)
    assert "336 of 336 as expected" in done.stderr
    assert "hit rate" in done.stderr  # the report
    manifest = json.loads((folder / f"{OUTPUT}.run.json").read_text())
    installed = os.environ.get("PAGEDRUN_EXPECT_INSTALLED")
    root = demo_prompts_path().parent if installed is None else Path(installed)
    for path in (manifest["model"]["path"], manifest["input"]["path"]):
        assert Path(path).resolve().is_relative_to(root.resolve())


def test_a_second_run_replaces_nothing_unless_it_is_asked_to(here: Path, pagedrun: Command) -> None:
    assert pagedrun("demo", "--limit", 2, "--quiet")[0] == 0
    before = Path(OUTPUT).read_bytes()
    status, out, err = pagedrun("demo", "--limit", 3)
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {OUTPUT} exists")
    assert "--overwrite" in err
    assert Path(OUTPUT).read_bytes() == before
    assert pagedrun("demo", "--limit", 3, "--overwrite", "--quiet")[0] == 0
    assert len(read_jsonl(Path(OUTPUT))) == 3
    assert pagedrun("demo", "--limit", 2, "-o", "other.jsonl", "--quiet")[0] == 0
    assert len(read_jsonl(Path("other.jsonl"))) == 2


def test_the_user_s_defaults_change_nothing(
    here: Path, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDRUN_MODEL", "./gone")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here))
    (here / "pagedrun").mkdir()
    (here / "pagedrun" / "config.yaml").write_text("max_tokens: 1\ntemperature: 2\n")
    assert pagedrun("demo", "--limit", 2, "--quiet")[0] == 0
    rows = read_jsonl(Path(OUTPUT))
    assert [row["text"] for row in rows] == [row["input"]["expected"] for row in rows]


@pytest.mark.parametrize("flag", ["--model", "--recipe", "--max-tokens"])
def test_it_is_one_run_and_no_other(here: Path, pagedrun: Command, flag: str) -> None:
    assert pagedrun("demo", flag, "3")[0] == 2
    assert list(here.iterdir()) == []
