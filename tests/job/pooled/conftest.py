"""A tiny encoder, and rows for it."""

from pathlib import Path

import pytest

from tests.job.pooled.pooled_jobs import write
from tests.support.tiny_encoders import texts, write_model, write_modules

LENGTHS = [3, 20, 1, 60, 20, 9]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    write_model(folder, "bert")
    write_modules(folder, {"pooling_mode_mean_tokens": True}, "Normalize")
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    write(path, [{"id": f"t{i}", "text": each, "n": i} for i, each in enumerate(texts(LENGTHS))])
    return path
