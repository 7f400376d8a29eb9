"""The prefix store: what one run leaves there spares the next one the work, and changes no byte."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.cache.prefix_store.entry import find_entries
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.values.engine_config import WindowSize
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.whole.command_server import CommandServer
from tests.whole.prefix_store.stored_runs import PREFIX_TOKENS, Ran, run, tokens, write_rows

INT8 = ("bfloat16", "int8")  # number formats of the model and of its cache


def test_nothing_is_kept_without_the_flag(rows: Path, model: Path, tmp_path: Path) -> None:
    ran = run(rows, model, None)
    assert "prefix_store" not in ran.report
    assert not [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("dtype", "cache"), [("float32", "auto"), ("bfloat16", "auto"), INT8])
def test_the_second_run_computes_no_token_of_the_prefix(
    dtype: str, cache: str, rows: Path, model: Path, store: Path
) -> None:
    engine: dict[str, Any] = {"dtype": dtype, "kv_cache_dtype": cache}
    without = run(rows, model, None, **engine)
    first = run(rows, model, store, **engine)
    second = run(rows, model, store, **engine)
    assert first.answers == second.answers == without.answers
    assert first.store["stored_tokens"] == second.store["loaded_tokens"] == PREFIX_TOKENS
    assert first.store["loaded_tokens"] == second.store["stored_tokens"] == 0
    own = 5 + 6 + 7 + 8
    assert first.report["tokens"]["computed"] >= PREFIX_TOKENS + own
    assert second.report["tokens"]["computed"] == own
    prefix = second.report["prefix"]
    assert prefix["hit_rate"] == pytest.approx(prefix["achievable_hit_rate"])
    assert prefix["misses"] == 0
    assert prefix["partial_hit_tokens"] == 3 * (PREFIX_TOKENS % 16)  # copied by the other rows
    assert first.warnings == second.warnings == []


def test_a_cache_in_another_format_finds_nothing_and_keeps_its_own_beside_it(
    rows: Path, model: Path, copied: Path
) -> None:
    """Codes taken for numbers, or numbers without their scales, would answer anything."""
    engine: dict[str, Any] = dict(zip(("dtype", "kv_cache_dtype"), INT8, strict=True))
    ran = run(rows, model, copied, **engine)
    assert ran.answers == run(rows, model, None, **engine).answers
    assert ran.store["loaded_tokens"] == 0
    assert ran.store["stored_tokens"] == PREFIX_TOKENS
    assert run(rows, model, copied).store["loaded_tokens"] == PREFIX_TOKENS


@pytest.mark.parametrize("window", [40, 150, 2600])
def test_windows_in_all_layers(
    window: int, system: list[int], make_model: MakeModel, store: Path, tmp_path: Path
) -> None:
    """What a window has left behind is stored too: a row that shares less goes on from there."""
    fields = {"sliding_window": window, "max_position_embeddings": 2560}
    model = make_model("mistral", "stored", **fields)
    rng = random.Random(2)
    first = write_rows(tmp_path / "first.jsonl", [system + tokens(rng, 5 + i) for i in range(2)])
    ran = run(first, model, store, max_num_batched_tokens=300)
    assert ran.answers == run(first, model, None).answers
    assert ran.store["stored_tokens"] == PREFIX_TOKENS
    prompts = [system[:cut] + tokens(rng, 9) for cut in (90, 700, 711, PREFIX_TOKENS)]
    again = write_rows(tmp_path / "again.jsonl", [*prompts, system, system[:800]])
    ran = run(again, model, store, num_blocks=160, max_num_batched_tokens=100)
    assert ran.answers == run(again, model, None).answers
    assert ran.store["loaded_tokens"] >= PREFIX_TOKENS - 1
    assert ran.warnings == []


def test_another_file_with_the_same_prefix_finds_it(
    system: list[int], model: Path, copied: Path, tmp_path: Path
) -> None:
    """One row alone, rows that share less or more of it, and one that is the prefix itself."""
    rng = random.Random(3)
    for number, prompts in enumerate(
        (
            [system + tokens(rng, 3)],
            [system[:700] + tokens(rng, 3), system[:711] + tokens(rng, 30)],
            [system],
            [system[:-1]],
        )
    ):
        rows = write_rows(tmp_path / f"{number}.jsonl", prompts)
        expected, got = run(rows, model, None), run(rows, model, copied)
        assert got.answers == expected.answers
        assert got.store["loaded_tokens"] >= 700
        own = sum(len(prompt) for prompt in prompts) - got.report["tokens"]["cached"]
        assert own <= 50  # what is too little to be worth a file is computed
        assert got.report["prefix"]["hit_rate"] <= got.report["prefix"]["achievable_hit_rate"]
        assert got.store["stored_tokens"] == 0


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 137},
        {"num_blocks": 130},
        {"num_blocks": 130, "preemption_mode": "recompute"},
        {"num_blocks": 130, "swap_space_bytes": 0},
        {"prefix_once": False},
    ],
    ids=str,
)
def test_whatever_the_pool_the_bytes_are_the_same(
    engine: dict[str, Any],
    rows: Path,
    model: Path,
    copied: Path,
    filled: tuple[Path, Ran],
) -> None:
    # Where blocks are few whoever fits is let in, so that somebody must give way.
    policy = RunPolicy(AdmitAll) if "num_blocks" in engine else DEFAULT_POLICY
    ran = run(rows, model, copied, partial(LocalModel, policy=policy), **engine)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] >= PREFIX_TOKENS
    assert ran.report["prefix"]["hit_rate"] <= ran.report["prefix"]["achievable_hit_rate"]


def nested(rng: random.Random) -> list[list[int]]:
    company = tokens(rng, 270)
    tasks = [company + tokens(rng, 150) for _ in range(3)]
    prompts = [task + tokens(rng, rng.randrange(1, 40)) for task in tasks for _ in range(4)]
    prompts += [company + tokens(rng, 9), tokens(rng, 200), tokens(rng, 30)]
    return prompts


@pytest.mark.parametrize("engine", [{}, {"num_blocks": 60, "max_num_seqs": 3}], ids=str)
def test_nested_prefixes_and_windows(
    engine: dict[str, Any], model: Path, store: Path, tmp_path: Path
) -> None:
    """A part that several prefixes begin with is stored once; windows change nothing of it."""
    rows = write_rows(
        tmp_path / "rows.jsonl", nested(random.Random(4)), temperature=0.8, n=2, seed=5
    )
    expected = run(rows, model, None)
    window = WindowSize(rows=5)
    first, second = (run(rows, model, store, window=window, **engine) for _ in range(2))
    assert first.answers == second.answers == expected.answers
    distinct = 270 + 3 * 150
    # A tail that several pieces begin with stands in each of them.
    assert distinct <= first.store["stored_tokens"] <= distinct + 3 * 16
    assert second.store["loaded_tokens"] >= distinct
    assert second.store["stored_tokens"] == 0
    assert second.report["tokens"]["computed"] < first.report["tokens"]["computed"] - 600
    assert second.report["prefix"]["hit_rate"] <= second.report["prefix"]["achievable_hit_rate"]


def test_two_runs_at_once(
    server: CommandServer, rows: Path, model: Path, store: Path, filled: tuple[Path, Ran]
) -> None:
    """In two processes."""
    args: list[str | Path] = ["generate", rows, "--model", model, "--prefix-store", store]
    args += ["--dtype", "float32", "--quiet", "--ordered", "-o", "other.jsonl"]
    other = server.start(args, rows.parent)
    mine = run(rows, model, store)
    assert (other.wait(), other.told()) == (0, "")
    report = json.loads(rows.with_name("other.jsonl.report.json").read_text())
    theirs = Ran(rows.with_name("other.jsonl"), report, [])
    assert mine.answers == theirs.answers == filled[1].answers
    assert mine.warnings == []
    assert run(rows, model, store).store["loaded_tokens"] == PREFIX_TOKENS
    assert len(find_entries(store)) == 1  # the same bytes have the same name
