"""Help: the daily flags on a screen, all of them, one panel; and what a shell completes."""

import re

import pytest

from pagedrun.cli.options.generate_flags import DAILY, GENERATE
from pagedrun.paged.values.errors import as_flag
from pagedrun.paged.values.flags import Panel
from tests.cli.light_command import light_command
from tests.support.command import Command

COMMANDS = ("generate", "plan", "inspect-cache", "lm-eval", "bench", "bench prefix", "recipes init")


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, flags=re.M))


def test_the_short_help_has_the_fifteen_daily_flags_on_one_screen() -> None:
    out = light_command("generate", "-h")
    assert flags_in(out) == {as_flag(name) for name in DAILY}
    assert len(DAILY) == 15
    assert len(out.splitlines()) <= 30
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "--help shows all flags" in out


def test_several_inputs_are_shown_by_three_dots() -> None:
    assert light_command("generate", "-h").splitlines()[0].endswith("[OPTIONS] INPUT...")


def test_help_of_a_panel_shows_that_panel_alone(pagedrun: Command) -> None:
    status, out, _ = pagedrun("generate", "--help", "memory")
    assert status == 0
    of_memory = {each.name for each in GENERATE if each.flag.panel == Panel.MEMORY}
    assert flags_in(out) == {as_flag(name) for name in of_memory}
    for word, title in (("PREFIX", "Shared prefixes"), ("structured", "Structured output")):
        assert f"\n{title}\n" in pagedrun("generate", "--help", word)[1]


def test_a_panel_that_is_not_there_is_answered_with_those_that_are(pagedrun: Command) -> None:
    status, out, err = pagedrun("generate", "--help", "nonsense\x1b[2J")
    assert (status, out) == (2, "")
    assert "--help nonsense\\x1b[2J: there is no such panel; the panels are files, model," in err


@pytest.mark.parametrize("words", COMMANDS)
def test_help_names_no_types_and_fits_its_lines(words: str, pagedrun: Command) -> None:
    """A switch was shown with `<bool>`, as if it took a value."""
    status, out, _ = pagedrun(*words.split(), "--help")
    assert status == 0
    assert not re.search(r"<(bool|str|int|float)", out)
    examples = re.compile(r"  pagedrun ")
    assert [each for each in out.splitlines() if len(each) > 80 and not examples.match(each)] == []


def test_without_a_panel_every_flag_is_shown_whatever_else_is_typed(pagedrun: Command) -> None:
    for words in (["--help"], ["x.jsonl", "--help"], ["--help", "--quiet"], ["-h", "--help"]):
        out = pagedrun("generate", *words)[1]
        assert flags_in(out) >= {as_flag(each.name) for each in GENERATE.only("seed", "block_size")}
    # The word behind a flag is its value, not a call for help.
    assert pagedrun("generate", "x.jsonl", "--system", "-h", "--model", "demo")[0] == 2


def test_short_flags_are_those_of_llama_cpp(pagedrun: Command) -> None:
    names = {"-m": "model", "-n": "max_tokens", "-t": "temperature", "-o": "output"}
    declared = {flag: each.name for each in GENERATE for flag in each.flag.declared}
    assert names.items() <= declared.items()
    status, _, err = pagedrun("generate", "x.jsonl", "-m", "demo", "-t", "0.5", "-n", "0")
    assert (status, err.startswith("Error: --max-tokens must be")) == (2, True)


def test_a_shell_completes_flags_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PAGEDRUN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "pagedrun generate --max-t")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert light_command().split() == ["--max-tokens"]
