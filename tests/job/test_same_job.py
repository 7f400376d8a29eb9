"""What makes a job another one, so that it is not resumed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.atomic import replace_json
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.row import InputDigest
from pagedrun.paged.job.output.manifest import Manifest
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.resume import check_same_job
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams

ARITHMETIC = {"device": "cpu", "kernel_set": "scalar"}


def manifest(
    model: Path, arithmetic: Mapping[str, object] = ARITHMETIC, **changes: Any
) -> Manifest:
    """Return the manifest of a job that begins."""
    config = JobConfig(input="in.jsonl", output="out.jsonl", engine=EngineConfig(model=model))
    source = InputDigest(3, "ab", whole=False)
    return Manifest.start(replace(config, **changes), source, 64, arithmetic)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


@pytest.fixture
def begun(model: Path, tmp_path: Path) -> Path:
    """The manifest of the job that is to be resumed."""
    path = tmp_path / "out.jsonl.run.json"
    replace_json(path, manifest(model))
    return path


def test_what_no_answer_depends_on_may_differ(model: Path, begun: Path) -> None:
    engine = EngineConfig(model=model, num_blocks=9, max_num_seqs=3, prefix_caching=False)
    check_same_job(manifest(model, engine=engine, ordered=True, resume=True), begun)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": SamplingParams(seed=1)}, r"another seed \(.*, now 1\)"),
        ({"sampling": SamplingParams(max_tokens=7)}, r"another max_tokens \(.*, now 7\)"),
        ({"sampling": SamplingParams(stop=("x",))}, r"another stop \(\[\], now \['x'\]\)"),
        ({"prompts": PromptConfig(system="Be kind.")}, "another system"),
        ({"chat_template": "{{ messages }}"}, "another chat_template"),
        ({"limit": 2}, r"another limit \(None, now 2\)"),
    ],
)
def test_another_setting_is_another_job(
    changes: dict[str, Any], named: str, model: Path, begun: Path
) -> None:
    with pytest.raises(UsageError, match=f"^resume: the output was started with {named}"):
        check_same_job(manifest(model, **changes), begun)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("config.json", "another model;"),
        ("model.safetensors", "another set of weights or tokenizer;"),
        ("more.safetensors", "another set of weights or tokenizer;"),
        ("tokenizer.json", "another set of weights or tokenizer;"),
        ("tokenizer_config.json", "another set of weights or tokenizer;"),
        ("chat_template.jinja", "another set of weights or tokenizer;"),
    ],
)
def test_another_file_of_the_model_is_another_job(
    name: str, named: str, model: Path, begun: Path
) -> None:
    (model / name).write_bytes((3).to_bytes(8, "little") + b"{ }")
    with pytest.raises(UsageError, match=f"^resume: the output was started with {named}"):
        check_same_job(manifest(model), begun)


@pytest.mark.parametrize(
    ("arithmetic", "named"),
    [
        ({"device": "cuda", "kernel_set": "scalar"}, "device was cpu and is cuda;"),
        (
            {"device": "cpu", "kernel_set": "avx2"},
            "kernel set was scalar and is avx2; pass .*scalar",
        ),
        ({**ARITHMETIC, "activations": "int8"}, "activations was exact and is int8;"),
        ({"device": "cpu"}, "kernel set was scalar and is None;"),
    ],
)
def test_another_arithmetic_is_another_job(
    arithmetic: dict[str, object], named: str, model: Path, begun: Path
) -> None:
    with pytest.raises(UsageError, match=f"^resume: .*computed differently: {named}"):
        check_same_job(manifest(model, arithmetic), begun)


def test_what_older_manifests_left_out_is_implied(model: Path, begun: Path) -> None:
    implied = {**ARITHMETIC, "computed_by": "pagedrun", "activations": "exact"}
    check_same_job(manifest(model, implied), begun)
