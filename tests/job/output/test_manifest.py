"""The manifest: what is written is read again, and what is none is refused."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.atomic import replace_json
from pagedrun.paged.job.config import JobConfig, RecipeFile
from pagedrun.paged.job.inputs.row import InputDigest
from pagedrun.paged.job.output.manifest import (
    JobStatus,
    Manifest,
    Setting,
    read_manifest,
    read_status,
)
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "config.json").write_text("{}")
    config = JobConfig(
        input="in.jsonl",
        output="out.jsonl",
        engine=EngineConfig(model=tmp_path),
        sampling=SamplingParams(stop=("x",), logit_bias=((7, -1.5),)),
        origins={"stop": "flag"},
        recipe=RecipeFile("mine.yaml", "0"),
    )
    source = InputDigest(3, "ab", whole=False)
    started = Manifest.start(config, source, 64, {"device": "script", "read_once": (2, 3)})
    return started.with_input(InputDigest(9, "cd", whole=True))


def test_what_is_written_is_read_again(manifest: Manifest, tmp_path: Path) -> None:
    finished = manifest.at(JobStatus.FINISHED, {"total": 1})
    assert finished.parameters["stop"] == Setting(["x"], "flag")
    biases = finished.parameters["logit_bias"].value
    assert SamplingParams().override({"logit_bias": biases}).logit_bias == ((7, -1.5),)
    assert (finished.input.sha256, finished.input.first_window_sha256) == ("cd", "ab")
    path = tmp_path / "out.run.json"
    replace_json(path, finished)
    assert read_manifest(path) == finished
    assert read_status(path) is JobStatus.FINISHED


def test_one_of_the_first_version_says_nothing_of_arithmetic(
    manifest: Manifest, tmp_path: Path
) -> None:
    path = tmp_path / "out.run.json"
    replace_json(path, manifest)
    written = json.loads(path.read_text())
    del written["arithmetic"]
    replace_json(path, written)
    assert read_manifest(path).arithmetic == {}


def test_texts_of_prompts_are_told_by_their_digests_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    texts = {
        name: f"The {name} is ours." for name in ("system", "prompt_template", "chat_template")
    }
    config = JobConfig(
        input="in.jsonl",
        output="out.jsonl",
        engine=EngineConfig(model=tmp_path),
        prompts=PromptConfig(
            system=texts["system"], template=PromptTemplate(texts["prompt_template"])
        ),
        chat_template=texts["chat_template"],
    )
    path = tmp_path / "out.run.json"
    replace_json(path, Manifest.start(config, InputDigest(3, "ab", whole=True), 64, {}))
    assert "ours" not in path.read_text()
    parameters = read_manifest(path).parameters
    for name, text in texts.items():
        digest = sha256(text.encode()).hexdigest()
        assert parameters[name].value == {"sha256": digest, "chars": len(text)}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "done"},
        {"model": {"path": "x"}},
        {"input": None},
        {"recipe": ["x"]},
        {"parameters": {"stop": 3}},
        {"rows": []},
        {"prompt_time": None, "started": "9999-12-31T23:59:59-12:00"},  # the year 10000 elsewhere
    ],
)
def test_what_lacks_a_field_is_none(
    changes: dict[str, Any], manifest: Manifest, tmp_path: Path
) -> None:
    path = tmp_path / "out.run.json"
    replace_json(path, manifest)
    replace_json(path, {**json.loads(path.read_text()), **changes})
    with pytest.raises(UsageError, match="is not a manifest of this version"):
        read_manifest(path)
