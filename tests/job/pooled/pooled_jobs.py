"""Jobs of `embed`, `rerank` and `classify` by the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run_command


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def run(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> str:
    """Run a command in float32; return its messages, without line breaks."""
    found, _, err = run_command(capsys, *args, "--dtype", "float32", "--progress", "none")
    assert found == status, err
    return " ".join(err.split())
