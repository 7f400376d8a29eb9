"""One file that asks for everything: the same bytes however it runs and wherever it dies."""

import json
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.metrics.snapshot_file import read_snapshot
from tests.conftest import MakeModel
from tests.support.comparable import comparable_bytes, differences
from tests.whole.command_server import CommandServer
from tests.whole.sampling.mixed_rows import TEMPLATE, mixed_rows
from tests.whole.sampling.whole_job import CROWDED, SOME_PREFIX, Whole, run
from tests.whole.written_rows import wait_for_rows

MAX_TOKENS = 12
SMALL: dict[str, Any] = {"num_blocks": 36, "max_num_batched_tokens": 61}


@pytest.fixture(scope="module")
def whole(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("together")
    return Whole.of(make_model("llama", "together"), folder, MAX_TOKENS)


def test_the_file_asks_for_everything(whole: Whole) -> None:
    """Or the tests below would show nothing: every part of an answer is there, and duplicates."""
    rows = [json.loads(line) for line in whole.answers.splitlines()]
    plain = [row for row in rows if "response" not in row and row["error"] is None]
    outputs = [output for row in plain for output in row["outputs"]]
    for name in ("prompt_logprobs", "scores", "vote"):
        assert any(row.get(name) for row in plain), name
    for name in ("logprobs", "reasoning", "beam_score", "stop_reason"):
        assert any(output.get(name) for output in outputs), name
    drawn = [(row["vote"]["drawn"], len(row["outputs"])) for row in plain if "vote" in row]
    assert all(one == other for one, other in drawn)
    assert len(set(drawn)) > 1
    assert {output["finish_reason"] for output in outputs} == {"stop", "length"}


@pytest.mark.invariant("same tokens preempted")
@pytest.mark.parametrize(
    ("mode", "speculate"), [("swap", "off"), ("recompute", "off"), ("swap", "2")]
)
def test_in_a_pool_where_rows_give_way(
    whole: Whole, mode: str, speculate: str, tmp_path: Path
) -> None:
    """Rows of every kind that takes more than a moment give way, and some several times."""
    engine = {"preemption_mode": mode, "speculate": speculate}
    report = whole.run(tmp_path, CROWDED, **engine, **SMALL).report
    assert report["preemptions"][mode] > 20  # type: ignore[literal-required]
    preempted = set(read_snapshot(tmp_path / "out.jsonl.snapshot.npz").preemptions.row.tolist())
    asked = mixed_rows()
    named = ("vote", "beam_width", "logprobs", "prompt_logprobs", "json_schema", "thinking_budget")
    for name in named:
        assert any(name in asked[index] for index in preempted), name


OTHERS: dict[str, dict[str, Any]] = {
    "few seats": {"max_num_seqs": 5, "max_num_batched_tokens": 37},
    "large blocks": {"block_size": 64, "jump_ahead": False},
    "one by one": {"max_num_seqs": 1},
    "small chunks": {"max_num_batched_tokens": 17, "prefix_once": False},
    "no cache": {"prefix_caching": False},
}
LONG = ("one by one", "small chunks", "no cache")


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in OTHERS]
)
def test_whatever_the_engine_has(whole: Whole, name: str, tmp_path: Path) -> None:
    whole.run(tmp_path, **OTHERS[name])


def test_with_a_prefix_store(whole: Whole, tmp_path: Path) -> None:
    first = whole.run(tmp_path, prefix_store=tmp_path / "store").report
    second = whole.compared(
        replace(
            whole.config,
            output=str(tmp_path / "again.jsonl"),
            engine=replace(whole.config.engine, prefix_store=tmp_path / "store"),
        )
    ).report
    assert first["prefix_store"]["stored_tokens"] > 0
    assert second["prefix_store"]["loaded_tokens"] > 0


@pytest.mark.parametrize(
    "percent", [70, *(pytest.param(p, marks=pytest.mark.long) for p in (0, 10, 30, 50, 90, 100))]
)
def test_resumed_wherever_it_died(whole: Whole, percent: int, tmp_path: Path) -> None:
    """Also in another batch, and in a pool where rows give way."""
    job = whole.died_at(len(Path(whole.config.output).read_bytes()) * percent // 100, tmp_path)
    engine = replace(job.engine, max_num_seqs=9, preemption_mode="recompute", **SMALL)
    whole.compared(replace(job, engine=engine), CROWDED)


def test_a_limit_and_a_resume(whole: Whole, tmp_path: Path) -> None:
    """The rows of a limited job, resumed, are those of one that was not."""
    (tmp_path / "limited").mkdir()
    config = replace(whole.config, output=str(tmp_path / "limited" / "out.jsonl"), limit=30)
    run(config, SOME_PREFIX)
    limited = Whole(config, comparable_bytes(config.output))
    assert len(limited.answers.splitlines()) == 30
    limited.compared(limited.died_at(20_000, tmp_path))


def kill_and_resume(whole: Whole, server: CommandServer, folder: Path, growths: list[int]) -> int:
    """Kill runs of the command when they have written so much; return how many were killed."""
    output, job = folder / "out.jsonl", whole.config
    flags: list[str | Path] = [
        *("generate", job.input, "-o", output, "--model", job.engine.model, "--dtype", "float32"),
        *("--chat-template", TEMPLATE, "--max-tokens", str(MAX_TOKENS), "--ignore-eos"),
        *("--block-size", "16", "--ordered", "--quiet", "--resume"),
    ]
    num_killed = 0
    for turn, growth in enumerate([*growths, 0]):
        mode = ("swap", "recompute")[turn % 2]
        engine = ["--num-blocks", str(36 + turn), "--preemption-mode", mode]
        command = server.start([*flags, *engine], folder)
        if growth:
            wait_for_rows(command.pid, output, growth)
            with suppress(ProcessLookupError):  # it was faster
                command.signal(signal.SIGKILL)
        status = command.wait()
        num_killed += status == -signal.SIGKILL
    assert status == 3, command.told()
    assert differences(comparable_bytes(output), whole.answers) == []
    assert comparable_bytes(output) == whole.answers
    return num_killed


def test_killed_and_resumed(whole: Whole, server: CommandServer, tmp_path: Path) -> None:
    assert kill_and_resume(whole, server, tmp_path, [1, 60_000]) > 0


@pytest.mark.long
def test_killed_and_resumed_many_times(whole: Whole, server: CommandServer, tmp_path: Path) -> None:
    for growth in (1, 7_000, 20_000, 50_000):
        folder = tmp_path / str(growth)
        folder.mkdir()
        assert kill_and_resume(whole, server, folder, [growth] * 5) > 0
