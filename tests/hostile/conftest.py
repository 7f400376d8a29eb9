"""The command run in this process, on files made for one test, with a small random model."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeModel
from tests.support.command import Command


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit status, what it said, and the output's rows in input order."""

    status: int
    out: str
    err: str
    rows: list[dict[str, Any]]

    @property
    def codes(self) -> list[str | None]:
        """The error code of each row, None if it was answered."""
        return [row["error"]["code"] if row["error"] else None for row in self.rows]

    def error(self, index: int) -> dict[str, Any]:
        """The error object of a row."""
        error: dict[str, Any] = self.rows[index]["error"]
        return error


@pytest.fixture(scope="session")
def model(make_model: MakeModel) -> Path:
    """A llama with 320 ids and 512 positions whose tokenizer begins texts with a token."""
    return make_model("llama", "hostile")


@pytest.fixture(scope="session")
def model_without_bos(make_model: MakeModel) -> Path:
    return make_model("qwen3", "hostile")


@pytest.fixture
def broken(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, free to be broken."""
    return Path(shutil.copytree(model, tmp_path / "broken"))


@pytest.fixture
def command(pagedrun: Command) -> Callable[..., Outcome]:
    """Run `pagedrun` with these arguments."""

    def run(*args: object) -> Outcome:
        status, out, err = pagedrun(*args)
        assert "Traceback" not in err
        return Outcome(status, out, err, [])

    return run


@pytest.fixture
def generate(
    command: Callable[..., Outcome], model: Path, tmp_path: Path
) -> Callable[..., Outcome]:
    """Answer an input, bytes or rows, quietly; rows that are bytes are lines as they are."""

    def run(
        data: bytes | list[Any], *args: object, name: str = "in.jsonl", using: Path | None = None
    ) -> Outcome:
        source, output = tmp_path / name, tmp_path / "out.jsonl"
        source.write_bytes(data if isinstance(data, bytes) else lines(data))
        flags = ["--model", using or model, "--max-tokens", 2, "--quiet", "--overwrite"]
        done = command("generate", source, "-o", output, *flags, *args)
        rows = []
        if output.exists():
            rows = [json.loads(line) for line in output.read_bytes().splitlines()]
            rows.sort(key=lambda row: int(row["index"]))
        return Outcome(done.status, done.out, done.err, rows)

    return run


def lines(rows: list[Any]) -> bytes:
    made = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    return b"".join(line + b"\n" for line in made)
