"""A model, rows with a common system prompt, and stores that an earlier run has filled."""

import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import MakeModel
from tests.whole.prefix_store.stored_runs import PREFIX_TOKENS, Ran, run, tokens, write_rows


@pytest.fixture(scope="session")
def model(make_model: MakeModel) -> Path:
    """Two layers that see differently far, as in the promise's own tests."""
    return make_model(
        "qwen3",
        "stored",
        dtype="bfloat16",
        use_sliding_window=True,
        sliding_window=150,
        max_window_layers=1,
        max_position_embeddings=2560,
    )


@pytest.fixture(scope="session")
def system() -> list[int]:
    return tokens(random.Random(1), PREFIX_TOKENS)


@pytest.fixture
def rows(tmp_path: Path, system: list[int]) -> Path:
    rng = random.Random(2)
    return write_rows(tmp_path / "rows.jsonl", [system + tokens(rng, 5 + i) for i in range(4)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="session")
def filled(
    model: Path, system: list[int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ran]:
    """A store with the system prompt in it, and the run that put it there. Copy it to change it."""
    place = tmp_path_factory.mktemp("filled")
    rng = random.Random(2)
    rows = write_rows(place / "rows.jsonl", [system + tokens(rng, 5 + i) for i in range(4)])
    return place / "store", run(rows, model, place / "store")


@pytest.fixture
def copied(filled: tuple[Path, Ran], store: Path) -> Path:
    shutil.copytree(filled[0], store)
    return store
