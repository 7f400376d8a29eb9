"""A run that takes answers from an earlier one gives the rows that it would give without it."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.comparable import comparable_rows
from tests.support.engines import ANY_PREFIX
from tests.support.every_pair import long_except
from tests.support.families import save_tiny
from tests.support.heard import Heard
from tests.support.jsonl import read_jsonl

SHORT, LONG = 5, 24
PREEMPTIONS: tuple[Literal["swap", "recompute"], ...] = ("swap", "recompute")


def run(job: JobConfig, listener: JobListener | None = None) -> JobResult:
    """Run the job, with shared-prefix attention for short prefixes too."""
    policy = RunPolicy(read_once=ANY_PREFIX)
    return run_job(job, listener, partial(LocalModel, policy=policy))


def rows_of_all_kinds() -> Iterator[dict[str, Any]]:
    """Rows that share a partition, and ask for everything."""
    rng = random.Random(3)
    shared = [rng.randrange(256) for _ in range(140)]
    kinds: list[dict[str, Any]] = [
        {},
        {},
        {"temperature": 0.9, "stop_token_ids": list(range(0, 320, 9))},
        {"n": 2},
        {"temperature": 0.9, "n": 2},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"beam_width": 2, "n": 2},
        {"regex": "[0-9]{3,40}"},
        {"bad_words": ["e", "th"], "min_tokens": 3, "stop": ["a"]},
        {"n": 4, "temperature": 1.0, "vote": "."},
        {"continuations": ["yes", "no"]},
        {"stop_token_ids": list(range(0, 320, 3))},
    ]
    for index in range(39):
        prompt = [*(shared if index % 5 else []), rng.randrange(256), index]
        yield {"prompt_token_ids": prompt, "id": f"r{index}", **kinds[index % len(kinds)]}
    yield from ({"prompt_token_ids": [9, 8, 7], "id": f"same{i}"} for i in range(3))
    yield {"prompt_token_ids": [99999], "id": "bad"}


def job(
    folder: Path, model: Path, rows: list[dict[str, Any]], name: str, **sampling: Any
) -> JobConfig:
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JobConfig(
        input=str(source),
        output=str(folder / f"{name}.out.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", max_num_seqs=12),
        sampling=SamplingParams(**sampling),
    )


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    return make_model("qwen3", "from", max_position_embeddings=256)


@pytest.fixture(scope="module")
def old(model: Path, tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    """A run whose answers are short."""
    folder = tmp_path_factory.mktemp("from")
    config = job(folder, model, list(rows_of_all_kinds()), "old", max_tokens=SHORT)
    run(config)
    return config


@pytest.fixture(scope="module")
def fresh(old: JobConfig) -> JobConfig:
    """The same rows with longer answers, computed from nothing."""
    sampling = SamplingParams(max_tokens=LONG)
    config = replace(old, output=old.output.replace("old.", "fresh."), sampling=sampling)
    run(config)
    return config


def again(config: JobConfig, old: JobConfig, folder: Path, **changes: Any) -> JobConfig:
    return replace(
        config, output=str(folder / "new.jsonl"), from_output=Path(old.output), **changes
    )


def test_the_same_run_again_computes_nothing(old: JobConfig, tmp_path: Path) -> None:
    result = run(again(old, old, tmp_path))
    counts, tokens = result.report["rows"], result.report["tokens"]
    assert (counts["copied"], counts["continued"], counts["computed"]) == (42, 0, 0)
    assert (tokens["computed"], tokens["generated"]) == (0, 0)
    assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(old.output)


def test_answers_to_other_questions_are_drafts(model: Path, tmp_path: Path) -> None:
    """The bias changes every request, and with these weights no answer."""
    rows = [{"prompt_token_ids": [index, 5, 9], "seed": index} for index in range(6)]
    first = job(tmp_path, model, rows, "first", max_tokens=LONG, temperature=1.0)
    run(first)
    biased = [{**row, "logit_bias": {"0": -1e-6}} for row in rows]
    alone = job(tmp_path, model, biased, "alone", max_tokens=LONG, temperature=1.0)
    run(alone)
    engine = replace(alone.engine, speculate="3")
    drafted = again(replace(alone, engine=engine), first, tmp_path)
    report = run(drafted).report
    assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(alone.output)
    assert report["rows"]["computed"] == len(rows)
    assert report["speculation"]["by_source"]["from_output"] > len(rows)


def test_longer_answers_go_on_from_the_shorter_ones(
    old: JobConfig, fresh: JobConfig, tmp_path: Path
) -> None:
    result = run(again(fresh, old, tmp_path))
    assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(fresh.output)
    before = read_jsonl(old.output)
    is_single = {row["index"]: len(row["outputs"]) == 1 for row in before if row["outputs"]}
    ended = sum(row["finish_reason"] == "stop" for row in before)
    counts = result.report["rows"]
    assert ended < counts["copied"] + counts["continued"] < len(is_single), counts
    assert counts["continued"] > 12
    assert counts["computed"] > 5
    generated = sum(row["usage"]["completion_tokens"] for row in read_jsonl(fresh.output))
    assert result.report["tokens"]["generated"] < generated - SHORT * counts["continued"]


def test_answers_go_on_with_small_pools_and_preemption(
    old: JobConfig, fresh: JobConfig, tmp_path: Path
) -> None:
    engine = replace(fresh.engine, num_blocks=17, max_num_batched_tokens=33, speculate="off")
    for mode in PREEMPTIONS:
        job = again(fresh, old, tmp_path, overwrite=True)
        result = run(replace(job, engine=replace(engine, preemption_mode=mode)))
        assert result.report["preemptions"][mode] > 0
        assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(fresh.output)


@pytest.mark.long
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5", "gemma3", "gpt_oss"])
def test_answers_go_on_whatever_layers_remember(name: str, tmp_path: Path) -> None:
    """States of recurrent layers, and windows that reach back into an answer half copied."""
    (tmp_path / "model").mkdir()
    save_tiny(name, tmp_path / "model")
    rows = list(rows_of_all_kinds())
    short = job(tmp_path, tmp_path / "model", rows, "short", max_tokens=SHORT, ignore_eos=True)
    whole = job(tmp_path, tmp_path / "model", rows, "whole", max_tokens=LONG, ignore_eos=True)
    run(short)
    run(whole)
    engine = replace(whole.engine, num_blocks=40, max_num_batched_tokens=50)
    for job_ in (whole, replace(whole, engine=engine)):
        counts = run(again(job_, short, tmp_path, overwrite=True)).report["rows"]
        assert counts["continued"] > 12
        assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(whole.output)


def test_what_comes_out_can_be_taken_from_again(
    old: JobConfig, fresh: JobConfig, tmp_path: Path
) -> None:
    run(again(fresh, old, tmp_path))
    (tmp_path / "next").mkdir()
    job = replace(again(fresh, old, tmp_path / "next"), from_output=tmp_path / "new.jsonl")
    assert run(job).report["rows"].get("computed") == 0
    assert comparable_rows(job.output) == comparable_rows(fresh.output)


def test_a_run_that_was_killed_goes_on(old: JobConfig, fresh: JobConfig, tmp_path: Path) -> None:
    job = again(fresh, old, tmp_path)
    run(job)
    output = Path(job.output)
    whole = output.read_bytes()
    output.write_bytes(whole[: len(whole) // 3])
    counts = run(replace(job, resume=True)).report["rows"]
    assert counts["skipped"] > 5
    assert counts["ok"] + counts["failed"] + counts["skipped"] == 43
    assert comparable_rows(output) == comparable_rows(fresh.output)
    # The rows of both parts are known again.
    (tmp_path / "next").mkdir()
    last = replace(again(fresh, old, tmp_path / "next"), from_output=output)
    assert run(last).report["rows"].get("copied") == 42


def test_another_file_takes_the_rows_that_are_computed_alike(
    old: JobConfig, model: Path, tmp_path: Path
) -> None:
    """Other rows, another order: sampled rows are keyed by their place, and a prefix that enough
    rows share is read for all of them together, which decides bytes as well."""
    rows = [row for row in rows_of_all_kinds() if row["id"] != "bad"]
    chosen = [*rows[::-1][:20], {"prompt_token_ids": [1, 2, 3], "id": "new"}, *rows[:3]]
    for number, row in enumerate(chosen):
        row["id"], row["number"] = f"n{number}", number
    config = job(tmp_path, model, chosen, "other", max_tokens=SHORT)
    run(config)
    counts = run(again(config, old, tmp_path)).report["rows"]
    assert 0 < counts["copied"] < 24
    assert counts["continued"] == 0
    assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(config.output)


@pytest.mark.parametrize(
    "name",
    long_except(
        ["new.parquet", "new.csv", "new.jsonl.gz", "new.jsonl"], ["new.parquet", "new.jsonl"]
    ),
)
def test_rows_taken_over_into_other_files(
    name: str, old: JobConfig, fresh: JobConfig, tmp_path: Path
) -> None:
    """Copied rows that miss the journal, of which the files are made, or come twice."""
    columns = ("index", "id", "text", "finish_reason", "outputs", "error")
    shards = 3 if name == "new.jsonl" else None
    changes: dict[str, Any] = {"columns": columns, "shards": shards}
    files = []
    for folder, earlier in ((tmp_path / "fresh", None), (tmp_path / "from", Path(old.output))):
        output = str(folder / name)
        run(replace(fresh, output=output, out_dir=folder, from_output=earlier, **changes))
        made = folder.glob(f"{Path(name).stem}-0*" if shards else name)
        files.append({path.name: path.read_bytes() for path in made})
    assert len(files[0]) == (shards or 1)
    assert files[0] == files[1]


def test_an_edited_template_computes_what_it_changed(model: Path, tmp_path: Path) -> None:
    rows = [{"q": f"What is {number}?", "hard": number % 4 == 0} for number in range(24)]
    text = "Answer in one word, as briefly as you can. " * 4
    templates = [
        text + "{{ q }}",
        text + "{{ q }}{% if hard %} Think first.{% endif %}",
    ]
    before, after = (
        replace(
            job(tmp_path, model, rows, name, max_tokens=SHORT),
            prompts=PromptConfig(template=PromptTemplate(template)),
        )
        for name, template in zip(("before", "after"), templates, strict=True)
    )
    run(before)
    run(after)
    counts = run(again(after, before, tmp_path)).report["rows"]
    assert (counts["copied"], counts["computed"]) == (18, 6)
    assert comparable_rows(tmp_path / "new.jsonl") == comparable_rows(after.output)


def test_lines_that_were_changed_are_not_taken(
    old: JobConfig, fresh: JobConfig, tmp_path: Path
) -> None:
    other = tmp_path / "edited.jsonl"
    for suffix in (".run.json", ".digests"):
        Path(f"{other}{suffix}").write_bytes(Path(f"{old.output}{suffix}").read_bytes())
    lines = Path(old.output).read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"text":"', b'"text":"not so')
    lines[7:7] = [b"\n", b"[" * 9999 + b"\n", b'{"index": 1}\n', b"\xff\xfe\n"]
    other.write_bytes(b"".join(lines[:-1]) + lines[-1][:-20])
    job = replace(again(fresh, old, tmp_path), from_output=other)
    heard = Heard()
    run(job, heard)
    assert comparable_rows(job.output) == comparable_rows(fresh.output)
    assert any("5 of 46 lines" in each for each in heard.warnings), heard.warnings


def test_another_model_is_refused(old: JobConfig, make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("qwen3", "from-other", max_position_embeddings=255)
    job = again(old, old, tmp_path, engine=replace(old.engine, model=model))
    with pytest.raises(UsageError, match=r"another model.*leave out from"):
        run(job)
    assert not Path(job.output).exists()
