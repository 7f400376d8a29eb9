"""Rows of every kind in engines drawn by chance, mostly crowded: always the same bytes."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeModel
from tests.support.every_pair import long_except
from tests.support.families import save_tiny
from tests.whole.sampling.whole_job import CROWDED, LONG_ANSWERS, SOME_PREFIX, Whole, windowed

# Windows in some or all layers, recurrent layers, windows with sinks, and none of these.
KINDS = ["mixed", "all", "lfm2", "qwen3_5", "gpt_oss", "llama"]
# Others run crowded in test_behind_windows.py and test_all_together.py.
TELLING = ["lfm2", "qwen3_5", "gpt_oss"]


@pytest.fixture(scope="module")
def whole(
    request: pytest.FixtureRequest, make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory
) -> Whole:
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    match kind:
        case "mixed" | "all":
            model = windowed(kind, folder, make_model)
        case "llama":
            model = make_model(kind, "any-engine")
        case _:
            save_tiny(kind, folder)
            model = folder
    return Whole.of(model, folder, LONG_ANSWERS)


def drawn_engine(pick: random.Random) -> dict[str, Any]:
    return {
        "preemption_mode": pick.choice(["swap", "recompute"]),
        "num_blocks": pick.choice([40, 44, 48, 56, 64]),
        "max_num_batched_tokens": pick.choice([33, 41, 61, 77, 128]),
        "max_num_seqs": pick.choice([5, 9, 16, 256, 256, 256]),
        "speculate": pick.choice(["1", "2", "4", "8", "off", "off"]),
        "jump_ahead": pick.random() < 0.7,
        "prefix_once": pick.random() < 0.7,
        "prefix_caching": pick.random() < 0.85,
    }


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 40))]
)
@pytest.mark.parametrize("whole", long_except(KINDS, TELLING), indirect=True)
def test_the_same_bytes_in_any_engine(whole: Whole, seed: int, tmp_path: Path) -> None:
    pick = random.Random(seed)
    engine = drawn_engine(pick)
    whole.run(tmp_path, CROWDED if pick.random() < 0.8 else SOME_PREFIX, **engine)
