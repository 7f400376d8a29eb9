"""Flags and commands of other programs get a sentence that leads to ours."""

import re

import pytest
from typer.main import get_command

from pagedrun.cli.help import COMMANDS, CommandGroup
from pagedrun.cli.main import app
from pagedrun.paged.values.foreign_flags import MISSING, RENAMED, explain
from tests.support.command import run_command

FLAG = re.compile(r"--[a-z][a-z0-9-]*")


GROUP = get_command(app)
assert isinstance(GROUP, CommandGroup)
OURS = GROUP.commands
VERBS = {"takes", "has", "answers"}  # pagedrun is the subject of some sentences
GENERATE = {
    flag for param in OURS["generate"].params for flag in (*param.opts, *param.secondary_opts)
}


def test_each_flag_is_unknown_here_and_leads_to_one_that_there_is() -> None:
    for flag in (*RENAMED, *MISSING):
        assert flag not in GENERATE
        for written in {flag, "--" + flag[2:].replace("-", "_")}:
            told = explain(written, GENERATE)
            assert told is not None
            assert told.startswith(written)
            named = set(FLAG.findall(told.removeprefix(written)))
            assert named <= GENERATE, told
            assert named or flag in MISSING


@pytest.mark.parametrize("flag", ["--max-new-tokens", "--tensor_parallel_size"])
def test_a_flag_of_another_program_is_answered(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run_command(capsys, "generate", "rows.jsonl", flag, "1")
    assert (status, out) == (2, "")
    assert err == f"Error: {explain(flag, GENERATE)}\nTry 'pagedrun generate --help' for help.\n"


def test_there_are_enough_of_them() -> None:
    assert len(RENAMED) + len(MISSING) >= 40


def test_ours_with_underscores_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run_command(capsys, "plan", "rows.jsonl", "--max_num_seqs", "3")
    assert err.startswith("Error: --max_num_seqs is written --max-num-seqs here\n")


def test_of_another_command_it_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run_command(capsys, "inspect-cache", "x", "--max-new-tokens", "3")
    assert "--max-new-tokens is called --max-tokens here, a flag of pagedrun generate\n" in err


def test_a_misspelt_flag_is_left_to_typer(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run_command(capsys, "generate", "rows.jsonl", "--max-tokns", "3")
    assert "No such option: --max-tokns" in err
    assert "--max-tokens" in err


def test_each_command_is_unknown_here_and_leads_to_one_that_there_is() -> None:
    assert not set(OURS) & set(COMMANDS)
    for told in COMMANDS.values():
        led_to = set(re.findall(r"pagedrun (\S+)", told)) - VERBS
        assert led_to <= {*OURS, "--version"}, told
        assert led_to or "--model" in told


def test_a_command_of_another_program_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_command(capsys, "serve", "--model", "x")
    assert (status, out) == (2, "")
    assert err.startswith("Error: there is no command serve: pagedrun has no server: ")


def test_a_misspelt_command_is_left_to_typer(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run_command(capsys, "genrate", "rows.jsonl")
    assert "No such command 'genrate'. Did you mean 'generate'?" in err
