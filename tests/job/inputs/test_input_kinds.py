"""The whole job on every kind of input: the same rows are answered alike."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel
from tests.support.jsonl import jsonl, read_jsonl, write_jsonl

ROWS: list[dict[str, Any]] = [
    {"id": f"r{i}", "prompt": "the same words in front " * 3 + str(i), "max_tokens": 3, "kind": "k"}
    for i in range(12)
]


def write_packed(path: Path) -> None:
    path.write_bytes(gzip.compress(jsonl(ROWS)))


def write_array(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1))


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)


def write_parquet(path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(ROWS), path)


def write_folder(path: Path) -> None:
    pytest.importorskip("datasets").Dataset.from_list(ROWS).save_to_disk(path)


KINDS: dict[str, Callable[[Path], None]] = {
    "in.jsonl.gz": write_packed,
    "in.json": write_array,
    "in.csv": write_csv,
    "in.parquet": write_parquet,
    "saved": write_folder,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_answered_and_planned_as_jsonl_is(
    name: str, make_model: MakeModel, tmp_path: Path
) -> None:
    model = EngineConfig(model=make_model("qwen3", "kinds"))

    def config_of(source: Path, limit: int | None = None) -> JobConfig:
        output = tmp_path / f"{source.name}.out.jsonl"
        return JobConfig(
            input=str(source),
            output=str(output),
            engine=model,
            ordered=True,
            limit=limit,
            overwrite=True,
        )

    def answers(config: JobConfig) -> tuple[list[Any], dict[str, Any]]:
        run_job(config)
        rows = read_jsonl(config.output)
        return rows, json.loads(Path(f"{config.output}.run.json").read_text())["input"]

    plain, other = tmp_path / "plain.jsonl", tmp_path / name
    write_jsonl(plain, ROWS)
    KINDS[name](other)
    expected, _ = answers(config_of(plain))
    got, digest = answers(config_of(other))
    assert got == expected
    assert all(row["error"] is None and row["input"] == {"kind": "k"} for row in got)
    some, limited = answers(config_of(other, limit=5))
    assert some == expected[:5]
    assert limited == digest
    assert digest["whole"]

    planned: list[Any] = [plan_file(config_of(path), JobListener()) for path in (plain, other)]
    for plan in planned:
        del plan["time"], plan["run_time"], plan["memory"]
    assert planned[0] == planned[1]
    assert planned[0]["advice"]["sample_rows"] == len(ROWS)
