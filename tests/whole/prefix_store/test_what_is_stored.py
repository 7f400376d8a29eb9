"""What goes into the prefix store, how much of it, and what never does."""

import errno
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, find_entries
from tests.whole.prefix_store.stored_runs import PREFIX_TOKENS, Ran, run, tokens, write_rows

POISON = 7  # the token whose embedding is NaN in a poisoned model


def test_it_is_private(filled: tuple[Path, Ran]) -> None:
    """Modes of the owner alone; nothing in the file is of a row itself."""
    store, _ = filled
    assert store.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.iterdir()} == {0o600}
    (path,) = find_entries(store)
    assert len(StoredPrefix.read(path).token_ids) == PREFIX_TOKENS
    kv = load_file(path)["kv"]
    assert kv[:, :, :-1].any(dim=-1).all()
    used = PREFIX_TOKENS % 16
    assert kv[:, :, -1, :, :used].any(dim=-1).all()
    assert not kv[:, :, -1, :, used:].any()


def test_what_belongs_to_one_row_is_never_stored(
    system: list[int], model: Path, store: Path, tmp_path: Path
) -> None:
    """Several samples of one prompt, the same prompt twice, and too little in common."""
    rng = random.Random(6)
    alone = tokens(rng, 300)
    short = tokens(rng, 63)
    prompts = [alone, alone, tokens(rng, 300), short + tokens(rng, 80), short + tokens(rng, 90)]
    for params in ({}, {"n": 3, "temperature": 1.0, "seed": 1}):
        rows = write_rows(tmp_path / "rows.jsonl", prompts, **params)
        ran = run(rows, model, store)
        assert ran.store["stored_tokens"] == (0 if not params else 300)
    (path,) = find_entries(store)  # asked twice and answered differently: two rows share it
    assert StoredPrefix.read(path).token_ids == tuple(alone)


def test_the_store_stays_below_its_limit_and_the_last_used_stays(
    model: Path, store: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)
    files = []
    for number in range(3):
        prefix = tokens(rng, 320)
        prompts = [prefix + tokens(rng, 5) for _ in range(2)]
        files.append(write_rows(tmp_path / f"{number}.jsonl", prompts))
    run(files[0], model, store)
    (one,) = (path.stat().st_size for path in find_entries(store))
    limit = int(2.5 * one)
    for rows in (files[1], files[0], files[2]):
        run(rows, model, store, prefix_store_bytes=limit)
        assert sum(path.stat().st_size for path in find_entries(store)) <= limit
    found = [run(rows, model, store).store["loaded_tokens"] for rows in (files[0], files[2])]
    assert found == [320, 320]
    assert run(files[1], model, store).store["loaded_tokens"] == 0
    assert run(files[1], model, store, prefix_store_bytes=one // 2).store["stored_tokens"] == 0


def test_a_full_disk_costs_a_warning(
    rows: Path, model: Path, store: Path, filled: tuple[Path, Ran], monkeypatch: Any
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pagedrun.paged.cache.prefix_store.folder.replace_file", full)
    ran = run(rows, model, store)
    assert ran.answers == filled[1].answers
    (warning,) = ran.warnings
    assert "No space left" in warning
    assert ran.store["stored_tokens"] == 0
    assert not find_entries(store)


def test_a_disk_that_is_nearly_full_is_left_to_the_answers(
    rows: Path, model: Path, store: Path, monkeypatch: Any
) -> None:
    class Usage:
        total, free = 2**40, 2**30

    monkeypatch.setattr(
        "pagedrun.paged.cache.prefix_store.folder.shutil.disk_usage", lambda _: Usage
    )
    ran = run(rows, model, store)
    assert len(ran.warnings) == 1
    assert not find_entries(store)


def test_nan_is_never_stored(model: Path, store: Path, system: list[int], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(model, bad)
    tensors = load_file(bad / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    prompts = [[*system[:200], POISON, *system[:30], 30 + each] for each in range(3)]
    prompts += [[*system[500:700], 30 + each] for each in range(3)]
    ran = run(write_rows(tmp_path / "rows.jsonl", prompts), bad, store)
    assert [json.loads(row)["error"] is not None for row in ran.answers][:3] == [True] * 3
    assert ran.store["stored_tokens"] == 200
    (path,) = find_entries(store)
    assert StoredPrefix.read(path).token_ids == tuple(system[500:700])
