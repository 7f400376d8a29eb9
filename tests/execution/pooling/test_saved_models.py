"""Folders saved by each generation of sentence-transformers have the vectors and scores that it has
for them: the installed one, and those that `tests/support/saved_models.py` has recorded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.values.pooling import Task
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.saved_models import KINDS, PAIRS, TEXTS, made_models, unpack, write_base

RECORDED = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "saved").glob("*.json"))
}
MOST = 1e-5


def check(folder: Path, *, scores: bool, expected: Any, task: str | None) -> None:
    """Compare the results of a folder with those of the library; long texts are cut as by it."""
    model = pooled_model(folder, Task.RERANK if scores else Task.EMBED, prompt_name=task)
    given: Any = PAIRS if scores else TEXTS
    asked = requests(model, list(given), Overlong.TRUNCATE_RIGHT)
    found = results(model.load_engine(), asked)
    ours = np.stack([found[index] for index in range(len(given))])
    theirs = np.reshape(np.asarray(expected, np.float32), (len(given), -1))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= MOST


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for name in ("bert", "bert-scores", "qwen3"):
        write_base(folder / name, name, template=name == "qwen3")
    return folder


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version, fixture in RECORDED.items() for name in fixture["kinds"]],
)
def test_folders_of_earlier_versions_have_the_results_they_had(
    version: str, name: str, bases: Path, tmp_path: Path
) -> None:
    kind = RECORDED[version]["kinds"][name]
    unpack(kind, bases, tmp_path / "model")
    check(
        tmp_path / "model", scores=kind["scores"], expected=kind["results"], task=kind.get("task")
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    made = made_models(tmp_path_factory.mktemp("saved"))
    return {kind.name: (folder, expected) for kind, folder, expected in made}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_folders_of_the_installed_version_have_its_results(
    kind: Any, saved: dict[str, tuple[Path, Any]]
) -> None:
    folder, expected = saved[kind.name]
    check(folder, scores=kind.scores, expected=expected, task=kind.task)


def test_three_generations_are_recorded() -> None:
    assert [version.split(".")[0] for version in RECORDED] == ["3", "5", "5"]
