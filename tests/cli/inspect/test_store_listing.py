"""`pagedrun inspect-cache DIR`: what a prefix store shows, and what pruning takes from it."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from pagedrun.cli import exits
from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, StoreIdentity, find_entries
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
from pagedrun.paged.values.planned_request import ROOT_DIGEST
from tests.cli.inspect.conftest import InspectCache

HOSTILE = "\x1b[2J[red]org/model"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two entries of 8 and 9 tokens; whose model's name is not to be trusted."""
    folder = StoreFolder.open(tmp_path / "store")
    fields = {"block_size": 4, "kv_dtype": "bfloat16", "dtype": "bfloat16"}
    for count in (8, 9):
        identity = StoreIdentity(HOSTILE, fields)
        entry = StoredPrefix(identity, ROOT_DIGEST, 0, tuple(range(count, 2 * count)))
        data = save({"kv": torch.zeros(1, 2, 3, 1, 4, 2)}, metadata=entry.metadata())
        folder.write(entry.file_name(data), data)
        folder.note_use([entry.file_name(data)])
    return folder.path


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_screen(columns: int, store: Path, run: InspectCache) -> None:
    status, out, err = run(store, width=columns)
    assert (status, out) == (exits.OK, "")
    assert "2 files, 17 tokens" in err
    assert "\x1b" not in err
    assert "[red]" in err  # not taken for a colour
    table = err.splitlines()[1:]
    assert max(len(line.rstrip()) for line in table) <= columns
    assert any("1–9" in line and line.rstrip().endswith("1") for line in table)


def test_json_and_pruning(store: Path, run: InspectCache) -> None:
    _, out, err = run(store, "--json", "--quiet")
    listing = json.loads(out)
    assert err == ""
    assert [entry["tokens"] for entry in listing["entries"]] == [9, 8]
    assert listing["entries"][0]["model"] == HOSTILE
    old = listing["entries"][1]["file"]
    path = store / listing["entries"][0]["file"]
    size = path.stat().st_size
    _, _, err = run(store, "--prune-to", str(size))
    assert "Removed 1 file" in err
    assert old[:32] in err
    assert find_entries(store) == [path]
    os.truncate(path, size - 1)
    _, _, err = run(store)
    assert "1 file is never used" in err
    assert find_entries(store) == [path]
    _, _, err = run(store, "--prune")
    assert "damaged" in err
    assert find_entries(store) == []


def test_what_is_refused(store: Path, tmp_path: Path, run: InspectCache) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("")
    other = tmp_path / "other"
    other.mkdir()
    for target, flags, why in (
        (store, ["--row", "3"], "--row applies to the files of a run"),
        (output, ["--prune"], "apply to prefix stores"),
        (other, [], "not a prefix store"),
        (other, ["--prune-to", "1"], "not a prefix store"),
    ):
        status, out, err = run(target, *flags)
        assert (status, out) == (exits.REFUSED, "")
        assert why in err
    assert list(other.iterdir()) == []
