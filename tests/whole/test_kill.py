"""SIGKILL at random moments, again and again: every row is there once, with the bytes it would
have had."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel
from tests.support.comparable import comparable_rows
from tests.support.jsonl import read_jsonl
from tests.support.streamed import streaming
from tests.whole.command_server import Command, CommandServer
from tests.whole.written_rows import SECONDS, wait_for_rows

NUM_ROWS = 120


class Process:
    """A command from the interpreter's start on, where a `Command` begins after the imports."""

    def __init__(self, args: list[str], cwd: Path) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "pagedrun", *args], cwd=cwd)
        self.pid = self._process.pid

    def signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait(self) -> int:
        return self._process.wait(timeout=SECONDS)


@pytest.fixture(scope="module")
def whole(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    """A job that ran undisturbed: rows that share prefixes, samples, the same twice, bad ones."""
    folder = tmp_path_factory.mktemp("whole")
    rng = random.Random(11)
    shared = [rng.randrange(256) for _ in range(70)]
    lines = ["not JSON", json.dumps({"prompt": 5})]
    for index in range(NUM_ROWS - len(lines)):
        row: dict[str, Any] = {
            "prompt_token_ids": [*(shared if index % 4 else []), index % 50, rng.randrange(9)],
            "max_tokens": rng.randrange(1, 24),
            "label": f"label {index}",
        }
        if index % 3 == 0:
            row |= {"temperature": 1.0, "n": 1 + index % 2}
        lines.append(json.dumps(row))
    rng.shuffle(lines)
    (folder / "rows.jsonl").write_text("\n".join(lines))
    model = make_model("qwen3", "kill", max_position_embeddings=256)
    config = JobConfig(
        input=str(folder / "rows.jsonl"),
        output=str(folder / "whole.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", max_num_seqs=2),
    )
    run_job(config)
    return config


def command_line(whole: JobConfig, rng: random.Random, output: str) -> list[str]:
    """Return the job's command, with a batch size of its own each time."""
    flags = ["--max-num-seqs", str(rng.choice([2, 3, 5])), "--dtype", "float32", "--quiet"]
    flags += ["--ordered"] * (rng.random() < 0.3)
    model = str(whole.engine.model)
    return ["generate", whole.input, "-o", output, "--resume", "--model", model, *flags]


def answers_in(output: Path) -> list[Any]:
    """Return what a table says of each row, as pandas reads it."""
    read = {".parquet": pandas.read_parquet, ".csv": pandas.read_csv}[output.suffix]
    columns = ("prompt_token_ids", "label", "answer", "finish_reason")
    frame = read(output)[list(columns)].astype(object)
    found = frame.where(frame.notna(), None).to_dict("records")
    return [tuple(plain(row[name]) for name in columns) for row in found]


def plain(value: Any) -> Any:
    """Return a cell as JSON has it."""
    if isinstance(value, str) and value.startswith("["):
        return json.loads(value)
    return value.tolist() if isinstance(value, numpy.ndarray) else value


def asked_in(path: Path | str) -> list[Any]:
    """Return prompt and label of each row of an input; of no line that is no row."""
    rows = []
    for line in Path(path).read_text().splitlines():
        row = json.loads(line) if line.startswith("{") else {}
        rows.append((row.get("prompt_token_ids"), row.get("label")))
    return rows


def has_every_row(output: Path, whole: JobConfig) -> bool:
    """Whether an output is that of the job that ran undisturbed."""
    if output.suffix == ".jsonl":
        return comparable_rows(output) == comparable_rows(whole.output)
    rows = sorted(read_jsonl(whole.output), key=lambda row: int(row["index"]))
    answers = [(row["text"] or None, row["finish_reason"]) for row in rows]
    asked = asked_in(whole.input)
    return answers_in(output) == [
        (*question, *answer) for question, answer in zip(asked, answers, strict=True)
    ]


def kill_again_and_again(
    num_kills: int,
    seed: int,
    whole: JobConfig,
    server: CommandServer,
    folder: Path,
    name: str = "out.jsonl",
    flags: Sequence[str] = (),
) -> int:
    """Kill jobs so often; return how many came to their end in between, the last one at least."""
    rng = random.Random(seed)
    output = folder / name
    if output.suffix != ".jsonl":
        output = folder / f"{name}.journal.jsonl"
    num_ended = 0
    killed = 0
    while killed < num_kills or output.exists() or num_ended == 0:
        args = [*command_line(whole, rng, name), *flags]
        process: Process | Command
        process = Process(args, folder) if rng.random() < 0.2 else server.start(args, folder)
        if killed < num_kills:
            if rng.random() < 0.7:
                wait_for_rows(process.pid, output, rng.randrange(1, 12_000))
            else:
                time.sleep(rng.random() * 2.5)
            with suppress(ProcessLookupError):  # it was faster
                process.signal(signal.SIGKILL)
        status = process.wait()
        if status == -signal.SIGKILL:
            killed += 1
            if output.exists():
                for line in output.read_bytes().split(b"\n")[:-1]:
                    json.loads(line)
            continue
        assert status == 3  # two rows are bad
        assert has_every_row(folder / name, whole)
        num_ended += 1
        for path in folder.glob("*out*"):
            path.unlink()
    return num_ended


@pytest.mark.heavy("the promise of a killed job, in processes of their own")
def test_killed_a_few_times(whole: JobConfig, server: CommandServer, tmp_path: Path) -> None:
    assert kill_again_and_again(3, 1, whole, server, tmp_path) >= 1


def test_killed_while_weights_are_packed_and_streamed(
    whole: JobConfig, server: CommandServer, tmp_path: Path
) -> None:
    engine = streaming(whole.engine, tmp_path / "sizes")
    memory = str(engine.config.weights_memory)
    flags = ["--weights-memory", memory, "--packed-dir", str(tmp_path / "packed")]
    assert kill_again_and_again(4, 4, whole, server, tmp_path, flags=flags) >= 1


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_200_times(whole: JobConfig, server: CommandServer, tmp_path: Path) -> None:
    num_ended = kill_again_and_again(200, 2, whole, server, tmp_path)
    print(f"200 kills, {num_ended} jobs came to their end")
    assert num_ended >= 1


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_killed_100_times_with_a_table(
    name: str, whole: JobConfig, server: CommandServer, tmp_path: Path
) -> None:
    """Rows that are lost with a journal, or a table of a part of them."""
    assert kill_again_and_again(100, 3, whole, server, tmp_path, name) >= 1
