"""Jobs of a checkpoint with an MTP module: the rows are those of a job without drafts, whether it
is killed, resumed, or takes answers of an earlier one."""

import json
import random
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.comparable import comparable_rows
from tests.support.drive import OneBlockEach
from tests.support.every_pair import every_pair, long_except
from tests.support.jsonl import read_jsonl
from tests.support.manifests import as_if_killed
from tests.support.mtp_models import NAMES, save_mtp
from tests.whole.command_server import CommandServer
from tests.whole.written_rows import wait_for_rows

NEAR = 0.05  # mixing at which modules are right at times
SHORT, LONG = 5, 20
ASKED = ("auto", "1", "4")
KINDS = ["mimo", "qwen3_next"]  # a plain module, and all that differs from it
SMALL: dict[str, Any] = {"num_blocks": 8, "max_num_batched_tokens": 33}


def rows_of_many_kinds() -> list[dict[str, Any]]:
    """Rows that share a prefix, samples of several temperatures, and some that have no drafts."""
    rng = random.Random(5)
    shared = [rng.randrange(5, 95) for _ in range(40)]
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "n": 2},
        {"logprobs": 2, "repetition_penalty": 1.1},
        {"temperature": 1.0, "stop_token_ids": list(range(0, 99, 9))},
        {"beam_width": 2},
        {"temperature": 0.6, "top_p": 0.8, "min_tokens": 4},
    ]
    prompts = [[*(shared if i % 3 else []), rng.randrange(5, 95), i + 5] for i in range(12)]
    return [
        {"prompt_token_ids": prompt, "id": f"r{index}", "seed": index, **kinds[index % len(kinds)]}
        for index, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module", params=long_except(NAMES, ["mimo"]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_mtp(request.param, folder, mixing=NEAR)
    return folder


@pytest.fixture(scope="module")
def fresh(model: Path, tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    """A job without drafts that ran to its end."""
    folder = tmp_path_factory.mktemp("fresh")
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows_of_many_kinds()))
    job = JobConfig(
        input=str(source),
        output=str(folder / "fresh.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", max_num_seqs=6, speculate="off"),
        sampling=SamplingParams(max_tokens=LONG),
    )
    assert "speculation" not in run_job(job).report
    return job


@pytest.fixture(scope="module")
def old(fresh: JobConfig) -> JobConfig:
    """The same job with short answers, with drafts."""
    job = drafting(fresh, "2", Path(fresh.output).with_name("old.jsonl"))
    job = replace(job, sampling=SamplingParams(max_tokens=SHORT))
    run_job(job)
    return job


def drafting(job: JobConfig, asked: str, output: Path, **flags: Any) -> JobConfig:
    engine = replace(job.engine, speculate=asked, **flags)
    return replace(job, engine=engine, output=str(output))


def run_to_the_same_rows(
    job: JobConfig, fresh: JobConfig, policy: RunPolicy = DEFAULT_POLICY, source: str = "mtp"
) -> Any:
    """Run a job, compare its rows; return its report. A number of drafts has some of `source`."""
    report = run_job(job, None, partial(LocalModel, policy=policy)).report
    assert comparable_rows(job.output) == comparable_rows(fresh.output)
    figures = report["speculation"]
    assert sum(figures["by_source"].values()) == figures["accepted"] <= figures["proposed"]
    if job.engine.speculate != "auto":
        assert figures["by_source"][source] > 0
        assert figures["tokens_per_step"] > 1.0
    return report


@every_pair("model", in_turn="model", model=[*NAMES], asked=ASKED)
def test_the_rows_are_those_without_drafts(asked: str, fresh: JobConfig, tmp_path: Path) -> None:
    run_to_the_same_rows(drafting(fresh, asked, tmp_path / "out.jsonl"), fresh)


@every_pair("model", in_turn="model", model=KINDS, mode=["recompute", "swap"])
def test_small_pools(mode: str, fresh: JobConfig, tmp_path: Path) -> None:
    job = drafting(fresh, "3", tmp_path / "out.jsonl", preemption_mode=mode, **SMALL)
    report = run_to_the_same_rows(job, fresh, RunPolicy(new_predictor=OneBlockEach))
    assert report["preemptions"][mode] > 0


@every_pair("model", in_turn="model", model=KINDS, asked=ASKED)
def test_a_job_that_died_goes_on(asked: str, fresh: JobConfig, tmp_path: Path) -> None:
    """With as many drafts as before, or another number."""
    job = drafting(fresh, asked, tmp_path / "out.jsonl")
    run_job(job)
    output = Path(job.output)
    whole = output.read_bytes()
    output.write_bytes(whole[: len(whole) // 3])
    report = run_to_the_same_rows(replace(job, resume=True), fresh)
    assert 0 < report["rows"]["skipped"] < len(read_jsonl(output))
    output.write_bytes(whole[: len(whole) // 2])
    Path(f"{output}.digests").unlink()  # of the lines that the second run wrote
    as_if_killed(Path(f"{output}.run.json"))
    run_to_the_same_rows(replace(drafting(job, "2", output), resume=True), fresh)


@every_pair("model", in_turn="model", model=KINDS, asked=ASKED)
def test_answers_go_on_from_those_of_an_earlier_job(
    asked: str, fresh: JobConfig, old: JobConfig, tmp_path: Path
) -> None:
    """The module follows the tokens of the earlier answers, too."""
    job = drafting(fresh, asked, tmp_path / "out.jsonl")
    counts = run_to_the_same_rows(replace(job, from_output=Path(old.output)), fresh)["rows"]
    assert counts["continued"] > 3


def test_answers_to_other_questions_are_drafts_beside_those_of_the_module(
    fresh: JobConfig, tmp_path: Path
) -> None:
    """The bias changes every request, and with these weights no answer."""
    biased = [{**row, "logit_bias": {"0": -1e-6}} for row in rows_of_many_kinds()]
    source = tmp_path / "biased.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in biased))
    alone = replace(fresh, input=str(source), output=str(tmp_path / "alone.jsonl"))
    run_job(alone)
    job = drafting(alone, "3", tmp_path / "out.jsonl")
    job = replace(job, from_output=Path(fresh.output))
    run_to_the_same_rows(job, alone, source="from_output")


@pytest.mark.parametrize("model", long_except(NAMES, ["qwen3_next"]), indirect=True)
def test_a_killed_command_goes_on(fresh: JobConfig, server: CommandServer, tmp_path: Path) -> None:
    args = ["generate", fresh.input, "-o", "out.jsonl", "--resume", "--quiet"]
    args += ["--model", str(fresh.engine.model), "--dtype", "float32", "--max-num-seqs", "2"]
    args += ["--max-tokens", str(LONG), "--speculate"]
    output, kills = tmp_path / "out.jsonl", 0
    for number, asked in enumerate(["3", "1", "auto", "4"]):
        process = server.start([*args, asked], tmp_path)
        if number < 3:
            wait_for_rows(process.pid, output, 600)
            with suppress(ProcessLookupError):  # it was faster
                process.signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert process.wait() == 0
    assert kills > 0
    assert comparable_rows(output) == comparable_rows(fresh.output)
