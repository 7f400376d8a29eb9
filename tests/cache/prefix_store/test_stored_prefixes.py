"""What one run loads from the prefix store and writes to it: checked entries, states, copies."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateArray, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, StateCache
from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, StoreIdentity, find_entries
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
from pagedrun.paged.cache.prefix_store.store_files import PrefixIndex, StoreFiles
from pagedrun.paged.cache.prefix_store.stored_prefixes import (
    StoredPrefixes,
    StoredStates,
    WindowCopies,
)
from pagedrun.paged.execution.device import Device
from pagedrun.paged.values.planned_request import ROOT_DIGEST, BlockKey, PlannedRequest
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

SIZE = 4
NUM_TOKENS = 64  # the fewest that are stored
NUM_BLOCKS = NUM_TOKENS // SIZE
IDENTITY = StoreIdentity("a-model", {"block_size": SIZE, "kv_dtype": "float32", "weights": "w"})
SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32")
STATE = StateSpec((StateArray("sums", (2, 3), "float32"),))
HOST = Device(torch.device("cpu"), Backend(), async_scheduling=False)


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolder:
    return StoreFolder.open(tmp_path / "store")


@pytest.fixture
def memory() -> KVMemory:
    """Of blocks that all differ."""
    memory = KVMemory(SPEC, SIZE, 2 * NUM_BLOCKS + 2, 0, HOST)
    memory.blocks.copy_(torch.arange(memory.blocks.numel()).view_as(memory.blocks))
    return memory


def put(folder: StoreFolder, memory: KVMemory, entry: StoredPrefix) -> Path:
    (kv,) = memory.read(range(NUM_BLOCKS))
    data = save({"kv": kv}, metadata=entry.metadata())
    folder.write(entry.file_name(data), data)
    return folder.path / entry.file_name(data)


def prefix(token_id: int, parent: bytes = ROOT_DIGEST, start: int = 0) -> StoredPrefix:
    return StoredPrefix(IDENTITY, parent, start, (token_id,) * NUM_TOKENS)


def row(index: int, token_id: int) -> Request:
    return Request(index, (token_id,) * (NUM_TOKENS + 1), SamplingParams())


def find(stored: StoredPrefixes, request: Request) -> Any:
    keys = BlockKey.chain(request.prompt_token_ids, SIZE)
    return stored.find(request, keys, 0, 0, lambda num_tokens: True)


BEHIND_ANOTHER = BlockKey.chain([9] * SIZE, SIZE)[0].digest


@pytest.mark.parametrize(
    "other", [prefix(2), prefix(1, BEHIND_ANOTHER, SIZE)], ids=["other tokens", "elsewhere"]
)
def test_a_file_that_has_changed_since_it_was_listed_is_not_used(
    other: StoredPrefix, folder: StoreFolder, memory: KVMemory
) -> None:
    """It is whole, and what its name says: the header that the index was built of was not."""
    ours, path = put(folder, memory, prefix(1)), put(folder, memory, other)
    whole = path.read_bytes()
    path.write_bytes(ours.read_bytes())
    ours.unlink()
    warnings: list[str] = []
    stored = StoredPrefixes(folder, IDENTITY, KVCache([memory]), 10**9, warnings.append)
    path.write_bytes(whole)
    assert find(stored, row(0, 1)) is None
    assert (stored.figures["loaded_tokens"], stored.figures["ignored_files"]) == (0, 1)
    assert "its tokens have changed" in warnings[0]
    put(folder, memory, prefix(1))
    stored = StoredPrefixes(folder, IDENTITY, KVCache([memory]), 10**9, pytest.fail)
    assert find(stored, row(0, 1)).num_tokens == NUM_TOKENS


def test_a_state_behind_other_tokens_is_not_used(folder: StoreFolder) -> None:
    """The file has changed since the index was built."""
    warnings: list[str] = []
    index = PrefixIndex(SIZE)
    files = StoreFiles(folder, index, 10**6, warnings.append)
    states = StateCache([STATE, STATE], 1, 0, HOST)
    stored = StoredStates(files, index, IDENTITY, states, SIZE)
    ours, other = (
        StoredPrefix(IDENTITY, ROOT_DIGEST, 0, (token_id,) * SIZE, has_state=True)
        for token_id in (1, 2)
    )
    digests = [BlockKey.after(ROOT_DIGEST, each.token_ids).digest for each in (ours, other)]
    array = torch.arange(12.0).view(2, 1, 1, 2, 3)
    name = files.write(other, {"state.0": array})
    assert name is not None
    found = stored.read(digests[1])
    assert found is not None
    assert found[0] == name
    assert torch.equal(found[1][0], array)
    index.drop(name)
    index.add(name, ours)
    assert stored.read(digests[0]) is None
    assert "its tokens have changed" in warnings[0]
    assert index.state_behind(digests[0]) is None


def test_after_a_write_that_failed_no_other_is_tried(
    folder: StoreFolder, memory: KVMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def full(path: Path, data: object) -> None:
        tried.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pagedrun.paged.cache.prefix_store.folder.replace_file", full)
    warnings: list[str] = []
    stored = StoredPrefixes(folder, IDENTITY, KVCache([memory]), 10**9, warnings.append)
    rows = [
        PlannedRequest(
            request,
            block_keys=tuple(BlockKey.chain(request.prompt_token_ids, SIZE)),
            num_stored_tokens=NUM_TOKENS,
        )
        for request in (row(0, 1), row(1, 2))
    ]
    assert list(stored.watched(rows)) == rows
    tables = np.arange(2 * (NUM_BLOCKS + 1), dtype=np.int32).reshape(2, -1)
    stored.note_step(
        rows=np.array([0, 1]),
        starts=np.zeros(2, dtype=np.int64),
        ends=np.full(2, NUM_TOKENS + 1),
        tables=[tables],
        write_slots=np.full(2, -1),
    )
    assert len(tried) == 1
    assert len(warnings) == 1
    assert stored.figures["stored_tokens"] == 0
    assert find_entries(folder.path) == []


def test_a_window_gives_what_a_row_has_filled_in_one_piece(memory: KVMemory) -> None:
    """A row that begins with blocks of others has no copies of them, nor has one before a gap."""
    copies, table = WindowCopies(memory), [7, 3, 9, 1, 8, 2]
    copies.note(0, 8, 16, 24, table)
    copies.note(0, 16, 22, 24, table)  # the last of its blocks is not full
    assert copies.of(0, 0) is None
    assert copies.of(0, 1) is None
    for first in (2, 3):
        assert torch.equal(*copies.of(0, first) or [], *memory.read(table[first:5]))
    copies.note(1, 0, 4, 24, table)
    copies.note(1, 12, 16, 24, table)
    assert copies.of(1, 0) is None
    assert copies.of(1, 2) is None
    assert torch.equal(*copies.of(1, 3) or [], *memory.read([1]))
    copies.forget(1)
    assert copies.of(1, 3) is None
