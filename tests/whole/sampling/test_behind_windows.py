"""Everything that rows may ask for, of models whose layers give back what is behind their windows.

That the tokens are right is shown in `tests/models` and `tests/whole/test_equivalence.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeModel
from tests.whole.sampling.whole_job import CROWDED, LONG_ANSWERS, Whole, windowed

SMALL: dict[str, Any] = {"num_blocks": 44, "max_num_batched_tokens": 61}
MakeWhole = Callable[[str], Whole]


@pytest.fixture(scope="module")
def make_whole(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> MakeWhole:
    made: dict[str, Whole] = {}

    def make(kind: str) -> Whole:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = Whole.of(windowed(kind, folder, make_model), folder, LONG_ANSWERS)
        return made[kind]

    return make


@pytest.mark.invariant("same tokens preempted")
@pytest.mark.heavy("same bytes: all ways of answering in one run")
@pytest.mark.parametrize(
    ("kind", "mode", "speculate"),
    [
        ("mixed", "recompute", "off"),
        ("all", "swap", "2"),
        pytest.param("mixed", "swap", "off", marks=pytest.mark.long),
        pytest.param("all", "recompute", "off", marks=pytest.mark.long),
        pytest.param("all", "swap", "off", marks=pytest.mark.long),
    ],
)
def test_in_a_pool_where_rows_give_way(
    make_whole: MakeWhole, kind: str, mode: str, speculate: str, tmp_path: Path
) -> None:
    engine = {"preemption_mode": mode, "speculate": speculate}
    report = make_whole(kind).run(tmp_path, CROWDED, **engine, **SMALL).report
    assert report["preemptions"][mode] > 20  # type: ignore[literal-required]


OTHERS: dict[str, dict[str, Any]] = {
    "few seats": {"max_num_seqs": 5, "max_num_batched_tokens": 37},
    "large blocks": {"block_size": 64, "jump_ahead": False},
    "small chunks": {"max_num_batched_tokens": 17, "prefix_once": False},
    "no cache": {"prefix_caching": False},
}


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", ["mixed", "all"])
def test_whatever_the_engine_has(
    make_whole: MakeWhole, kind: str, name: str, tmp_path: Path
) -> None:
    make_whole(kind).run(tmp_path, **OTHERS[name])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mixed", "all"])
def test_died_and_resumed(make_whole: MakeWhole, kind: str, tmp_path: Path) -> None:
    whole = make_whole(kind)
    whole.compared(whole.died_at(len(whole.answers) // 2, tmp_path))
