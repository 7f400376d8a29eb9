"""The prefix store of models with recurrent layers: states beside keys and values."""

import random
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, find_entries
from pagedrun.paged.cache.prefix_store.listing import StoreListing
from tests.support.every_pair import every_pair
from tests.support.families import save_tiny
from tests.whole.prefix_store.stored_runs import Ran, run, tokens, write_rows

NUM_SHARED = 203  # of which 192 are whole blocks
NUM_ROWS = 4
KINDS = ["lfm2", "qwen3_5"]


@pytest.fixture(scope="session", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, folder)
    return folder


def rows_behind(path: Path, prefix: list[int], seed: int) -> Path:
    rng = random.Random(seed)
    return write_rows(path, [prefix + tokens(rng, 20 + each) for each in range(NUM_ROWS)])


@pytest.fixture
def prefix() -> list[int]:
    return tokens(random.Random(8), NUM_SHARED)


@pytest.fixture
def first(model: Path, prefix: list[int], store: Path, tmp_path: Path) -> Ran:
    """The run that fills the store."""
    return run(rows_behind(tmp_path / "first.jsonl", prefix, 1), model, store)


def test_the_next_run_begins_with_the_state_and_gives_the_same_bytes(
    model: Path, prefix: list[int], store: Path, tmp_path: Path, first: Ran
) -> None:
    blocks, state = sorted(map(StoredPrefix.read, find_entries(store)), key=lambda e: e.has_state)
    assert (blocks.has_state, len(blocks.token_ids)) == (False, 192)
    assert (state.has_state, state.start, len(state.token_ids)) == (True, 176, 16)
    rows = rows_behind(tmp_path / "next.jsonl", prefix, 2)
    without = run(rows, model, None)
    again = run(rows, model, store)
    assert again.answers == without.answers
    assert again.store["loaded_tokens"] == 192
    assert again.store["stored_tokens"] == 0
    num_tokens = sum(NUM_SHARED + 20 + each for each in range(NUM_ROWS))
    prefix_report = again.report["prefix"]
    assert prefix_report["hit_rate"] == pytest.approx(NUM_ROWS * 192 / num_tokens)
    assert prefix_report["hit_rate"] <= prefix_report["achievable_hit_rate"]
    assert again.report["states"]["found_states"] == NUM_ROWS
    assert not again.warnings


def test_a_longer_prefix_goes_on_from_a_stored_state_and_leaves_its_own(
    model: Path, prefix: list[int], store: Path, tmp_path: Path, first: Ran
) -> None:
    longer = prefix + tokens(random.Random(3), 150)
    rows = rows_behind(tmp_path / "longer.jsonl", longer, 4)
    ran = run(rows, model, store)
    assert ran.store["loaded_tokens"] == 192
    assert run(rows, model, store).store["loaded_tokens"] == 352
    assert ran.answers == run(rows, model, None).answers


def test_where_no_state_was_kept_nothing_is_taken(
    model: Path, prefix: list[int], store: Path, tmp_path: Path, first: Ran
) -> None:
    """The blocks are there, but not the state behind so few of them; then it is."""
    rows = rows_behind(tmp_path / "shorter.jsonl", prefix[:100], 5)
    ran = run(rows, model, store)
    assert (ran.store["loaded_tokens"], ran.store["stored_bytes"] > 0) == (0, True)
    again = run(rows, model, store)
    assert again.store["loaded_tokens"] == 96
    assert again.answers == ran.answers == run(rows, model, None).answers


@pytest.mark.parametrize("has_state", [False, True])
def test_a_damaged_file_is_computed_again(
    model: Path, store: Path, tmp_path: Path, first: Ran, has_state: bool
) -> None:
    (path,) = (p for p in find_entries(store) if StoredPrefix.read(p).has_state == has_state)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = run(tmp_path / "first.jsonl", model, store)
    assert again.answers == first.answers
    assert again.store["loaded_tokens"] == 0
    assert "damaged" in again.warnings[0]
    assert run(tmp_path / "first.jsonl", model, store).store["loaded_tokens"] == 192


@every_pair(
    "model",
    in_turn="model",
    model=KINDS,
    engine=[
        {"max_num_seqs": 1, "num_blocks": 20},
        {"max_num_seqs": 3, "num_blocks": 22, "preemption_mode": "recompute"},
        {"max_num_seqs": 4, "num_blocks": 24, "preemption_mode": "swap"},
        {"max_num_batched_tokens": 50, "max_num_seqs": 4},
        {"prefix_store_bytes": 200_000},
    ],
)
def test_small_pools_and_stores_give_the_same_bytes(
    model: Path, prefix: list[int], store: Path, tmp_path: Path, engine: dict[str, Any]
) -> None:
    """Rows that part at several places, twice: to fill the store, and to read what is there."""
    rng = random.Random(9)
    prompts = []
    for cut in (203, 120, 203, 70, 160):
        branch = prefix[:cut] + tokens(rng, 70)
        prompts += [branch + tokens(rng, 3 + each) for each in range(3)]
    rows = write_rows(tmp_path / "rows.jsonl", prompts, max_tokens=12)
    answers = run(rows, model, None).answers
    assert run(rows, model, store, **engine).answers == answers
    again = run(rows, model, store, **engine)
    assert again.answers == answers
    assert again.store["loaded_tokens"] > 0


def test_it_is_listed_and_a_state_without_its_blocks_is_pruned(
    model: Path, store: Path, first: Ran
) -> None:
    listing = StoreListing.read(store)
    assert sorted(each["has_state"] for each in listing.to_dict()["entries"]) == [False, True]
    assert listing.to_dict()["tokens"] == 192
    (blocks,) = (p for p in find_entries(store) if not StoredPrefix.read(p).has_state)
    blocks.unlink()
    assert [each.entry.has_state for each in StoreListing.pruned(store, None).removed if each.entry]
    assert not find_entries(store)
