"""Outputs that no answers can be taken from are refused before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.heard import Heard
from tests.support.scripted_model import ScriptedModel, config_for

ROWS = [{"prompt": "a"}, {"prompt": "b"}]


def run(config: JobConfig, listener: JobListener | None = None) -> None:
    run_job(config, listener, ScriptedModel().open())


@pytest.fixture
def old(place: Path) -> Path:
    config = config_for(place, ROWS)
    run(config)
    return Path(config.output).rename(place / "old.jsonl")


def begun(old: Path, **changes: Any) -> JobConfig:
    """Return the job that takes answers from `old`, beside which its files are now."""
    for suffix in (".run.json", ".digests"):
        beside = old.with_name("out.jsonl" + suffix)
        if beside.exists():
            beside.rename(old.with_name(old.name + suffix))
    return config_for(old.parent, ROWS, from_output=old, **changes)


def refused(config: JobConfig, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        run(config)
    assert not Path(config.output).exists()


def test_the_rows_of_the_same_computation_are_read(old: Path) -> None:
    heard = Heard()
    run(begun(old, sampling=SamplingParams(max_tokens=7)), heard)
    assert heard.warnings == []


def test_without_a_manifest(old: Path) -> None:
    config = begun(old)
    old.with_name(old.name + ".run.json").unlink()
    refused(config, "so the settings of .*old.jsonl are unknown; leave out from")


def test_with_a_manifest_of_something_else(old: Path) -> None:
    config = begun(old)
    old.with_name(old.name + ".run.json").write_text("{}")
    refused(config, "not a manifest of this version.*leave out from")


def test_without_digests(old: Path) -> None:
    config = begun(old)
    old.with_name(old.name + ".digests").unlink()
    refused(config, r"old.jsonl.digests cannot be read.*leave out from")


OTHER_WEIGHTS = {"path": "m", "config_json_sha256": "0", "files_sha256": "1"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": "0.0.1"}, "was computed by pagedrun 0.0.1, and this is"),
        ({"arithmetic": {"device": "abacus"}}, r"another device \(abacus, now script\)"),
        ({"model": OTHER_WEIGHTS}, r"another model, other weights.*\(m, now "),
        ({"kv_cache_dtype": "int8"}, r"another kv_cache_dtype \(int8, now auto\)"),
    ],
)
def test_of_another_computation(old: Path, changes: dict[str, Any], match: str) -> None:
    config = begun(old)
    path = old.with_name(old.name + ".run.json")
    manifest = json.loads(path.read_text())
    for name, value in changes.items():
        if name in manifest:
            manifest[name] = value
        else:
            manifest["parameters"][name]["value"] = value
    path.write_text(json.dumps(manifest))
    refused(config, match)


def test_the_output_itself(place: Path, old: Path) -> None:
    config = config_for(place, ROWS, from_output=place / "." / "out.jsonl", overwrite=True)
    refused(config, "is the output itself")


def test_a_file_that_is_not_there(place: Path) -> None:
    refused(config_for(place, ROWS, from_output=place / "gone.jsonl"), "gone.jsonl.run.json cannot")


def test_digests_that_cannot_be_written_cost_a_warning_and_no_row(place: Path) -> None:
    (place / "out.jsonl.digests").mkdir()
    heard = Heard()
    config = config_for(place, ROWS)
    run(config, heard)
    assert len(Path(config.output).read_bytes().splitlines()) == 2
    [warning] = heard.warnings
    assert "out.jsonl.digests cannot be written" in warning
