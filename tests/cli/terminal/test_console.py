"""What is told on a terminal and off it: options as flags, lines that break at words."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from pagedrun.cli import exits
from pagedrun.cli.options.generate_flags import ProgressMode
from pagedrun.cli.progress.progress import show_progress
from pagedrun.cli.report.answer_screen import show_loading
from pagedrun.cli.terminal.console import note, tell
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.values.errors import EngineError, RowError, UsageError, option, turned_off

MESSAGE = f"{option('columns')}: no row has it; leave out {turned_off('prefix_once')}"
SHOWN = "--columns: no row has it; leave out --no-prefix-once"
PATH = "/a/path/that-is-longer/than-the/terminal-is-wide/rows.jsonl"


def _screen(width: int = 200) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, markup=False, color_system=None
    )


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _warn(listener: JobListener) -> None:
    listener.on_phase(Phase.LOAD)
    listener.on_warning(MESSAGE)


@pytest.mark.parametrize("mode", ProgressMode)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_warning_names_options_as_flags_in_every_display(
    mode: ProgressMode, is_terminal: bool
) -> None:
    console = _screen() if is_terminal else Console(file=io.StringIO(), width=200)
    with show_progress(mode, console) as listener:
        _warn(listener)
    assert SHOWN in _written(console)
    assert set(_written(console)) & {"\x02", "\x03"} == set()
    assert "x02" not in _written(console)
    assert "u0002" not in _written(console)


def test_a_question_that_waits_warns_in_the_same_words() -> None:
    console = Console(file=io.StringIO(), width=200)
    with show_loading(console, quiet=False) as listener:
        _warn(listener)
    assert _written(console) == f"Warning: {SHOWN}\n"


@pytest.mark.parametrize(
    "error", [UsageError(MESSAGE), EngineError(MESSAGE), RowError("invalid_param", MESSAGE)]
)
def test_an_error_and_what_was_added_to_it_name_flags(error: Exception) -> None:
    error.add_note(MESSAGE)
    assert exits.describe(error) == f"Error: {SHOWN}; {SHOWN}"


def test_a_note_names_flags() -> None:
    console = Console(file=io.StringIO(), width=20)
    note(console, MESSAGE)
    assert _written(console) == f"{SHOWN}\n"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_an_error_breaks_at_words_and_never_within_a_path(width: int) -> None:
    console = _screen(width)
    told = f"Error: {PATH}: cannot be read; 東京東京東京 東京東京 and other words come behind it"
    tell(console, told)
    lines = _written(console).splitlines()
    assert " ".join(lines) == told
    assert len(lines) > 1
    assert all(cell_len(line) <= width or line.strip(":") == PATH for line in lines)


def test_an_error_in_a_log_is_one_line() -> None:
    console = Console(file=io.StringIO(), width=20)
    tell(console, f"Error: {PATH}: cannot be read, whatever the width")
    assert _written(console) == f"Error: {PATH}: cannot be read, whatever the width\n"
