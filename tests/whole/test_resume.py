"""Resume: a job that died anywhere goes on to the same rows, each of them once."""

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.comparable import comparable_rows
from tests.support.engines import ANY_PREFIX
from tests.support.jsonl import read_jsonl
from tests.support.manifests import as_if_killed


def run(job: JobConfig, listener: JobListener | None = None) -> JobResult:
    """Run the job, with shared-prefix attention for short prefixes too."""
    policy = RunPolicy(read_once=ANY_PREFIX)
    return run_job(job, listener, partial(LocalModel, policy=policy))


@pytest.fixture(scope="module")
def config(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    """Rows that share a partition, rows that ask the same, samples, and rows that fail."""
    folder = tmp_path_factory.mktemp("resume")
    rng = random.Random(3)
    shared = [rng.randrange(256) for _ in range(140)]
    lines: list[str] = []
    for index in range(30):
        row: dict[str, Any] = {
            "prompt_token_ids": [*(shared if index % 5 else []), rng.randrange(256), index],
            "max_tokens": 2 + index % 7,
        }
        if index % 3 == 0:
            row |= {"temperature": 0.8, "n": 1 + index % 2}
        lines.append(json.dumps(row))
    lines += [json.dumps({"prompt_token_ids": [9, 8, 7], "max_tokens": 5})] * 3
    lines += ["not JSON", json.dumps({"prompt_token_ids": [99999]}), json.dumps({"prompt": 5})]
    rng.shuffle(lines)
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    model = make_model("qwen3", "resume", max_position_embeddings=200)
    return JobConfig(
        input=str(path),
        output=str(folder / "whole.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", max_num_seqs=12),
    )


@pytest.fixture(scope="module")
def whole(config: JobConfig) -> JobConfig:
    run(config)
    return config


def died_at(whole: JobConfig, num_bytes: int, folder: Path) -> JobConfig:
    """Return the job as a run leaves it that dies when so many bytes of output are written."""
    output = folder / "out.jsonl"
    output.write_bytes(Path(whole.output).read_bytes()[:num_bytes])
    manifest = Path(f"{output}.run.json")
    manifest.write_bytes(Path(f"{whole.output}.run.json").read_bytes())
    as_if_killed(manifest)
    return replace(whole, output=str(output), resume=True)


def assert_same_in_the_end(whole: JobConfig, job: JobConfig) -> JobResult:
    before = Path(job.output).read_bytes()
    num_whole = before.count(b"\n")
    result = run(job)
    assert comparable_rows(job.output) == comparable_rows(whole.output)
    if not job.ordered:
        assert Path(job.output).read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    counts = result.report["rows"]
    assert counts["total"] == counts["ok"] + counts["failed"] + counts["skipped"] == 36
    assert counts["skipped"] == num_whole
    assert counts["failed"] + counts.get("skipped_failed", 0) == 3
    assert ("skipped_failed" in counts) == (counts["failed"] < 3)
    assert result.num_failed == 3
    return result


@pytest.mark.parametrize("tenths", [0, 3, 5, 8, 10])
def test_it_goes_on_wherever_it_died(tenths: int, whole: JobConfig, tmp_path: Path) -> None:
    size = Path(whole.output).stat().st_size
    assert_same_in_the_end(whole, died_at(whole, size * tenths // 10, tmp_path))


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 200))]
)
def test_it_goes_on_wherever_it_died_with_other_settings(
    seed: int, whole: JobConfig, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    size = Path(whole.output).stat().st_size
    job = died_at(whole, rng.randrange(size + 1), tmp_path)
    engine = replace(
        job.engine,
        max_num_seqs=rng.choice([1, 5, 64]),
        num_blocks=rng.choice([None, 14, 40]),
        block_size=16,
        prefix_caching=rng.random() < 0.7,
    )
    assert_same_in_the_end(whole, replace(job, engine=engine, ordered=rng.random() < 0.3))


def test_the_order_of_the_input_if_that_is_asked(whole: JobConfig, tmp_path: Path) -> None:
    job = replace(died_at(whole, 4000, tmp_path), ordered=True)
    run(job)
    indices = [row["index"] for row in read_jsonl(job.output)]
    assert indices == list(range(36))
    assert comparable_rows(job.output) == comparable_rows(whole.output)


def test_nothing_is_left_to_do(whole: JobConfig, tmp_path: Path) -> None:
    job = died_at(whole, 10**9, tmp_path)
    assert assert_same_in_the_end(whole, job).report["rows"]["skipped"] == 36
    assert Path(f"{job.output}.report.json").exists()  # there was none


def test_what_the_finished_run_has_told_stays(whole: JobConfig, tmp_path: Path) -> None:
    job = died_at(whole, 10**9, tmp_path)
    beside = [Path(f"{job.output}{suffix}") for suffix in (".report.json", ".snapshot.npz")]
    for path in beside:
        path.write_bytes(b"of the run that answered the rows")
    run(job)
    assert {path.read_bytes() for path in beside} == {b"of the run that answered the rows"}


def test_a_run_that_is_cut_off_leaves_no_report_of_another(
    whole: JobConfig, tmp_path: Path
) -> None:
    job = died_at(whole, 4000, tmp_path)
    beside = [Path(f"{job.output}{suffix}") for suffix in (".report.json", ".snapshot.npz")]
    for path in beside:
        path.write_bytes(b"of an earlier run")

    class CutOff(JobListener):
        def on_phase(self, phase: Phase) -> None:
            if phase is Phase.RUN:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(job, CutOff())
    assert not any(path.exists() for path in beside)


def test_an_output_that_is_not_there_yet_is_begun(whole: JobConfig, tmp_path: Path) -> None:
    job = replace(whole, output=str(tmp_path / "new.jsonl"), resume=True)
    assert run(job).report["rows"]["skipped"] == 0
    assert comparable_rows(job.output) == comparable_rows(whole.output)


def test_failed_rows_are_tried_again_if_that_is_asked(whole: JobConfig, tmp_path: Path) -> None:
    job = replace(died_at(whole, 10**9, tmp_path), retry_errors=True)
    result = run(job)
    assert comparable_rows(job.output) == comparable_rows(whole.output)
    assert result.report["rows"] == {"total": 36, "ok": 0, "failed": 3, "skipped": 33}
    assert result.num_failed == 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": SamplingParams(temperature=0.5)}, r"temperature \(0\.0, now 0\.5\)"),
        ({"limit": 30}, r"limit \(None, now 30\)"),
    ],
)
def test_another_job_is_refused_and_nothing_is_lost(
    changes: dict[str, Any], named: str, whole: JobConfig, tmp_path: Path
) -> None:
    job = died_at(whole, 4000, tmp_path)
    before = Path(job.output).read_bytes()
    with pytest.raises(UsageError, match=f"^resume: the output was started with another .*{named}"):
        run(replace(job, **changes))
    assert Path(job.output).read_bytes() == before


def test_weights_rounded_otherwise_are_another_job(whole: JobConfig, tmp_path: Path) -> None:
    job = died_at(whole, 4000, tmp_path)
    with pytest.raises(UsageError, match=r"started with another .*quantization \(auto, now int8\)"):
        run(replace(job, engine=replace(job.engine, quantization="int8")))
    assert_same_in_the_end(whole, replace(job, engine=replace(job.engine, quantization="none")))


def test_another_input_and_another_model_are_told_apart(
    whole: JobConfig, tmp_path: Path, make_model: MakeModel
) -> None:
    job = died_at(whole, 4000, tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text(Path(whole.input).read_text() + '{"prompt_token_ids": [1]}\n')
    with pytest.raises(UsageError, match="started with another input; run it with the same"):
        run(replace(job, input=str(other)))
    model = make_model("qwen3", "resume2", max_position_embeddings=200, num_hidden_layers=1)
    with pytest.raises(UsageError, match="another model, another set of weights or tokenizer;"):
        run(replace(job, engine=replace(job.engine, model=model)))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"some": "file"}\n', "line 1 is not an output row"),
        ("[]\n", "line 1 is not an output row"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    content: str, sentence: str, whole: JobConfig, tmp_path: Path
) -> None:
    job = died_at(whole, 0, tmp_path)
    Path(job.output).write_text(content)
    with pytest.raises(UsageError, match=sentence):
        run(job)
    assert Path(job.output).read_text() == content


@pytest.mark.parametrize("content", ["precious, and no newline", '{"index": 0, "error": nul'])
def test_what_has_no_whole_line_is_not_thrown_away_unless_it_is_ours(
    content: str, whole: JobConfig, tmp_path: Path
) -> None:
    job = died_at(whole, 0, tmp_path)
    Path(job.output).write_text(content)
    Path(f"{job.output}.run.json").unlink()
    with pytest.raises(UsageError, match="it is unknown whether the output is of the same job"):
        run(job)
    assert Path(job.output).read_text() == content


def test_a_row_that_stands_twice_is_refused(whole: JobConfig, tmp_path: Path) -> None:
    job = died_at(whole, 4000, tmp_path)
    first = Path(job.output).read_text().splitlines(keepends=True)[0]
    Path(job.output).write_text(first * 2)
    with pytest.raises(UsageError, match=r"line 2 has a second answer to row \d+"):
        run(job)


def test_without_a_manifest_nobody_can_tell(whole: JobConfig, tmp_path: Path) -> None:
    job = died_at(whole, 4000, tmp_path)
    Path(f"{job.output}.run.json").unlink()
    with pytest.raises(UsageError, match="it is unknown whether the output is of the same job"):
        run(job)
