"""The command, run in this process."""

from typing import Protocol

import pytest

from pagedrun.cli.main import main


class Command(Protocol):
    """Runs `pagedrun ARGS`; gives its exit status, stdout and stderr."""

    def __call__(self, *args: object) -> tuple[int, str, str]: ...


def run_command(capture: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Run `pagedrun ARGS`; return its exit status, and what it alone wrote to stdout and stderr."""
    capture.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["pagedrun", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capture.readouterr()
