"""`pagedrun lm-eval`: the harness's command line, with pagedrun as the model of a run."""

import sys
from pathlib import Path

import pytest

from pagedrun.paged.evaluation.command import parsed
from tests.evaluation.tasks import DEMO
from tests.support.command import Command


@pytest.mark.parametrize(
    ("args", "model"),
    [
        (["--tasks", "x"], "pagedrun"),
        (["run", "--tasks", "x"], "pagedrun"),
        (["run", "--model", "hf", "--tasks", "x"], "hf"),
        (["-M", "hf", "--tasks", "x"], "hf"),
        (["--config", "named.yaml"], None),  # that of the file
        (["--config", "other.yaml"], "pagedrun"),
    ],
    ids=str,
)
def test_a_run_that_names_no_model_is_of_pagedrun(
    args: list[str], model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("named.yaml").write_text("model: hf\ntasks: [x]\n")
    Path("other.yaml").write_text("tasks: [x]\n")
    typed = [*sys.argv]
    assert parsed(args).model == model
    assert sys.argv == typed


def test_help_behind_a_subcommand_is_the_harness_own(pagedrun: Command) -> None:
    status, out, _ = pagedrun("lm-eval", "run", "--help")
    assert (status, "usage: lm-eval run --model" in out) == (0, True)


def test_what_the_harness_refuses(pagedrun: Command) -> None:
    assert pagedrun("lm-eval", "run", "--no_such_flag")[0] == 2
    status, _, err = pagedrun("lm-eval", "run", "--config", "no.yaml")
    assert status == 1
    assert "Error: lm_eval failed: FileNotFoundError: Config file not found: /" in err


@pytest.mark.long  # the harness reads all the tasks that it has
def test_an_evaluation(pagedrun: Command, task_folder: Path, tmp_path: Path) -> None:
    tasks = ("--tasks", "staff_choice", "--include_path", task_folder, "--output_path", tmp_path)
    args = f"pretrained={DEMO},dtype=float32"
    status, out, _ = pagedrun("lm-eval", "--model_args", args, "--limit", "2", *tasks)
    assert (status, out.startswith("pagedrun ({")) == (0, True)
    assert "|staff_choice|" in out
    assert len(list(tmp_path.rglob("results_*.json"))) == 1
    status, _, err = pagedrun("lm-eval", "--model_args", "pretrained=no/where/at/all", *tasks)
    assert status == 2
    assert err.splitlines()[-1].startswith("Error: no/where/at/all: no such folder")
