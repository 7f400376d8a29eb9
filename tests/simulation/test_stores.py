"""A power cut while a prefix store or a packed folder is written: what was written before is whole,
and nothing damaged is taken for whole."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pagedrun.kernels.stored_layers import ArraySpec, StoredLayer
from pagedrun.paged.cache.prefix_store.entry import (
    StoredPrefix,
    StoreIdentity,
)
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
from pagedrun.paged.cache.prefix_store.listing import StoreListing
from pagedrun.paged.models.streaming.packed_folder import PackedFolder
from pagedrun.paged.models.streaming.weight_ring import EntryFile, page_memory
from pagedrun.paged.values.planned_request import ROOT_DIGEST
from tests.simulation.disk import DiskModel, RecordedDisk

NUM_ENTRIES = 3


def write_prefixes(root: Path, number: int) -> None:
    tokens = tuple(range(number, number + 64))
    entry = StoredPrefix(StoreIdentity("model", {"block_size": 16}), ROOT_DIGEST, 0, tokens)
    data = save({"kv": np.full((1, 2, 4, 1, 16, 2), number, np.float32)}, entry.metadata())
    StoreFolder.open(root / "store", flag="").write(entry.file_name(data), data)


def whole_prefixes(root: Path) -> set[int]:
    found = set()
    if (root / "store" / "prefix-store.json").exists():
        StoreListing.read(root / "store")
        StoreListing.pruned(root / "store", None)
        for path in StoreFolder.open(root / "store", flag="").entries():
            found.add(StoredPrefix.verified(path.read_bytes(), path.name).token_ids[0])
    return found


def write_layers(root: Path, number: int) -> None:
    layer = StoredLayer({"is": "Layer"}, (ArraySpec("|u1", (5000,)),))
    array = np.full(5000, number, np.uint8)
    PackedFolder(root / "packed" / "all", {"model": 1}).write(str(number), [(layer, [array])])


def whole_layers(root: Path) -> set[int]:
    found = set()
    folder = PackedFolder(root / "packed" / "all", {"model": 1}, create=False)
    for number in range(1, 1 + NUM_ENTRIES):
        entry = folder.find(str(number))
        if entry is not None:
            memory = page_memory(entry.num_bytes)
            if EntryFile(entry).read(memory):  # by its checksum
                assert set(memory[:5000]) == {number}
                found.add(number)
    return found


@pytest.mark.parametrize(
    ("write", "whole"),
    [(write_prefixes, whole_prefixes), (write_layers, whole_layers)],
    ids=["prefix store", "packed folder"],
)
def test_what_was_written_is_whole(
    write: Callable[[Path, int], None], whole: Callable[[Path], set[int]], tmp_path: Path
) -> None:
    disk, draw = RecordedDisk(tmp_path), random.Random(1)
    with disk.recording():
        for number in range(1, 1 + NUM_ENTRIES):
            write(tmp_path, number)
            disk.mark("written", str(number).encode())
    for place in range(len(disk.calls) + 1):
        marks = [each.data for each in disk.calls[:place] if each.kind == "written"]
        for model in DiskModel:
            disk.restore(disk.after_cut(place, model, draw))
            there = whole(tmp_path)
            assert set(map(int, filter(None, marks))) <= there, (place, model)
            for number in range(1, 1 + NUM_ENTRIES):
                write(tmp_path, number)
            assert whole(tmp_path) == set(range(1, 1 + NUM_ENTRIES))
