"""A host that is one step behind its device gives the same answers as one that is not."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.run import Run, RunPolicy
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import ANY_PREFIX, load_engine
from tests.support.every_pair import long_except

NUM_ROWS = 40


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "async", max_position_embeddings=400)


def requests() -> list[Request]:
    """Rows that end in every way: by length, at once, by a token, by a string."""
    rng = random.Random(5)
    shared = [rng.randrange(256) for _ in range(140)]
    made = []
    for index in range(NUM_ROWS):
        prompt = shared[: rng.choice([0, 40, 140, 140])] + [
            rng.randrange(256) for _ in range(rng.randrange(1, 20))
        ]
        params = SamplingParams(
            max_tokens=rng.choice([4, 5, 9, 30]) if index % 7 else 1,
            temperature=index % 3 * 0.7,
            n=1 + index % 2 * 2,
            seed=index,
            stop=("a", "\x07") if index % 5 == 0 else (),
            stop_token_ids=tuple(range(0, 256, 24)) if index % 2 else (),
        )
        made.append(Request(index, tuple(prompt), params))
    return made


POLICY = RunPolicy(AdmitAll, ANY_PREFIX)
Runs = Callable[..., tuple[dict[int, Completion], Run]]


def answers(
    folder: Path, async_scheduling: bool, *, graphs: bool = False, **engine: Any
) -> tuple[dict[int, Completion], Run]:
    config = EngineConfig(model=folder, dtype="float32", **{"speculate": "off", **engine})
    device = replace(choose_device("cpu"), async_scheduling=async_scheduling, graphs=graphs)
    loaded = load_engine(config, POLICY, device)
    run = loaded.start(requests(), hooks=RunHooks(on_step=lambda _: run.scheduler.check()))
    got = {completion.request.index: completion for completion in run}
    assert not run.scheduler.ending
    assert run.pool.num_held == 0
    return got, run


SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "one-at-a-time": {"max_num_seqs": 1},
    "few-seats": {"max_num_seqs": 3},
    "tiny-chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 4},
    "swapped": {"num_blocks": 13, "preemption_mode": "swap"},
    "recomputed": {"num_blocks": 13, "preemption_mode": "recompute"},
    "uncached": {"prefix_caching": False, "num_blocks": 40},
}


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """Run the rows in a setting, each way once for all tests."""

    @cache
    def run(async_scheduling: bool, setting: str = "roomy") -> tuple[dict[int, Completion], Run]:
        return answers(folder, async_scheduling, **SETTINGS[setting])

    return run


TELLING = ["roomy", "few-seats", "tiny-chunks", "swapped", "recomputed"]
OTHERS = ["tiny-chunks", "recomputed"]


@pytest.mark.invariant("same answers with a host that is behind")
@pytest.mark.parametrize("setting", long_except(SETTINGS, TELLING))
def test_same_answers(setting: str, runs: Runs) -> None:
    expected, at_once = runs(False, setting)
    got, behind = runs(True, setting)
    assert len(got) == NUM_ROWS
    for index, completion in got.items():
        assert completion.error is None
        assert completion.outputs == expected[index].outputs
    if setting in ("swapped", "recomputed"):
        assert sum(behind.scheduler.counts.preemptions.values()) > 0
    reasons = {o.finish_reason for c in got.values() for o in c.outputs}
    assert len(reasons) == 2, "rows that stop and rows that run to their end"
    counted = [run.statistics.generated_tokens for run in (at_once, behind)]
    assert (
        counted[0] == counted[1] == sum(len(o.token_ids) for c in got.values() for o in c.outputs)
    )


@pytest.mark.parametrize(
    ("setting", "graphs"),
    [
        *(("roomy", True), ("swapped", False)),
        *(pytest.param(each, False, marks=pytest.mark.long) for each in OTHERS),
    ],
)
def test_what_an_earlier_run_left_changes_nothing(
    setting: str, graphs: bool, runs: Runs, folder: Path, tmp_path: Path
) -> None:
    expected, _ = runs(False)
    for _ in range(2):
        got, run = answers(
            folder, True, graphs=graphs, prefix_store=tmp_path / "store", **SETTINGS[setting]
        )
        assert {i: c.outputs for i, c in got.items()} == {i: c.outputs for i, c in expected.items()}
    store = run.report()["prefix_store"]
    assert store["loaded_tokens"] >= 140
    assert store["stored_tokens"] == 0


def test_the_host_is_behind(runs: Runs) -> None:
    """What a stopped row computes in the step that was already launched is thrown away."""
    _, at_once = runs(False)
    _, behind = runs(True)
    assert behind.scheduler.counts.computed_tokens > at_once.scheduler.counts.computed_tokens


def test_no_choice_is_seen_late(folder: Path, tmp_path: Path) -> None:
    """A token after NaN is not a token: the row fails, and the step in flight does no harm."""
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    tensors = load_file(bad / "model.safetensors")
    tensors["model.embed_tokens.weight"][requests()[0].prompt_token_ids[-1]] = torch.nan
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    expected, _ = answers(bad, False)
    got, _ = answers(bad, True)
    failed = {index for index, completion in got.items() if completion.error is not None}
    assert 0 in failed
    assert len(failed) < NUM_ROWS
    for index, completion in got.items():
        assert completion.outputs == expected[index].outputs
        assert (completion.error is None) == (expected[index].error is None)


@pytest.mark.parametrize("setting", long_except(SETTINGS, [*set(TELLING) - set(OTHERS)]))
def test_decode_steps_that_go_on_by_themselves(setting: str, runs: Runs, folder: Path) -> None:
    expected, at_once = runs(True, setting)
    got, run = answers(folder, True, graphs=True, **SETTINGS[setting])
    assert {i: c.outputs for i, c in got.items()} == {i: c.outputs for i, c in expected.items()}
    assert run.attention_reads == at_once.attention_reads
    assert run.captured_shapes
    assert not at_once.captured_shapes
    assert any(shape.num_shared_partitions for shape in run.captured_shapes)


@pytest.mark.parametrize("model", ["some", "all"])
def test_decode_steps_go_on_by_themselves_behind_windows(model: str, make_model: MakeModel) -> None:
    """The device keeps table entries of blocks that were given back, and must not read them; where
    all layers have windows, rows read nothing together."""
    layers = {"use_sliding_window": True, "max_window_layers": 1}
    family, fields = {"some": ("qwen2", layers), "all": ("mistral", {})}[model]
    folder = make_model(family, f"{model}-windows", sliding_window=20, **fields)
    settings: dict[str, Any] = {"block_size": 16, "max_num_seqs": 9, "num_blocks": 60}
    expected, _ = answers(folder, False, **settings)
    got, run = answers(folder, True, graphs=True, **settings)
    assert {i: c.outputs for i, c in got.items()} == {i: c.outputs for i, c in expected.items()}
    shared = any(shape.num_shared_partitions for shape in run.captured_shapes)
    assert run.captured_shapes
    assert shared == (model == "some")
