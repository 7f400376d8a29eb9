"""A finished run, and the command that looks at one."""

from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.finished_run import leave_run
from tests.support.command import Command


class InspectCache(Protocol):
    """Runs `pagedrun inspect-cache ARGS` on a screen of `width` columns."""

    def __call__(self, *args: str | Path, width: int = 100) -> tuple[int, str, str]: ...


@pytest.fixture
def run(pagedrun: Command, monkeypatch: pytest.MonkeyPatch) -> InspectCache:
    def inspect_cache(*args: str | Path, width: int = 100) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        return pagedrun("inspect-cache", *args)

    return inspect_cache


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return leave_run(tmp_path)
