"""Everything that rows may ask for, of models whose layers give back what is behind their windows.

That the tokens are right is shown in `tests/models` and `tests/whole/test_equivalence.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.comparable import comparable_bytes
from tests.support.families import FULL, SLIDING, TINY, Tiny, save_tiny
from tests.support.jsonl import write_jsonl
from tests.whole.sampling.mixed_rows import BAD, TEMPLATE, mixed_rows
from tests.whole.sampling.whole_job import CROWDED, SOME_PREFIX, Whole, run

MAX_TOKENS = 24  # so that answers leave windows behind, and beams part far from their ends
WINDOW = 20
SMALL: dict[str, Any] = {"num_blocks": 44, "max_num_batched_tokens": 61}
MakeWhole = Callable[[str], Whole]


@pytest.fixture(scope="module")
def make_whole(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> MakeWhole:
    """By the kind of model: layers with windows beside others, or windows in all of them."""
    made: dict[str, Whole] = {}

    def make(kind: str) -> Whole:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            model = folder
            if kind == "mixed":
                gemma = {**TINY["gemma3"].fields, "layer_types": [SLIDING, FULL]}
                fields = {**gemma, "num_hidden_layers": 2, "sliding_window": WINDOW}
                save_tiny(Tiny("Gemma3TextConfig", fields), folder)
            else:
                model = make_model("mistral", "all-windows", sliding_window=WINDOW)
            made[kind] = _ran(model, folder)
        return made[kind]

    return make


def _ran(model: Path, folder: Path) -> Whole:
    config = JobConfig(
        input=str(write_jsonl(folder / "rows.jsonl", mixed_rows())),
        output=str(folder / "whole.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", block_size=16),
        chat_template=TEMPLATE,
        sampling=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
        ordered=True,
    )
    assert run(config, SOME_PREFIX).num_failed == len(BAD)
    return Whole(config, comparable_bytes(config.output))


@pytest.mark.parametrize(
    ("kind", "mode", "speculate"),
    [("mixed", "swap", "off"), ("all", "recompute", "off"), ("all", "swap", "2")],
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
@pytest.mark.parametrize(("kind", "mode"), [("mixed", "recompute"), ("all", "swap")])
def test_in_a_pool_where_rows_give_way_otherwise(
    make_whole: MakeWhole, kind: str, mode: str, tmp_path: Path
) -> None:
    engine = {"preemption_mode": mode, "speculate": "off"}
    report = make_whole(kind).run(tmp_path, CROWDED, **engine, **SMALL).report
    assert report["preemptions"][mode] > 20  # type: ignore[literal-required]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mixed", "all"])
def test_died_and_resumed(make_whole: MakeWhole, kind: str, tmp_path: Path) -> None:
    whole = make_whole(kind)
    whole.compared(whole.died_at(len(whole.answers) // 2, tmp_path))
