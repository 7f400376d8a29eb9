"""Files of packed layers: whole or absent, checked, within limits."""

import errno
import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagedrun.kernels.stored_layers import ArraySpec, StoredLayer
from pagedrun.paged.models.streaming import packed_folder
from pagedrun.paged.models.streaming.packed_folder import PackedFolder, packed_models
from pagedrun.paged.models.streaming.residency import PAGE_BYTES
from pagedrun.paged.models.streaming.weight_ring import EntryFile, page_memory
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from tests.support.tiny_models import published_config


def layer(*sizes: int) -> tuple[StoredLayer, list[Any]]:
    arrays = [np.arange(size, dtype=np.uint8) for size in sizes]
    specs = tuple(ArraySpec("|u1", (size,)) for size in sizes)
    return StoredLayer({"is": "Layer"}, specs), arrays


def test_an_entry_has_the_bytes_that_were_written(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {"model": 1})
    layers = [layer(5, 0, 200), layer(70)]
    folder.write("first", layers)
    entry = folder.find("first")
    assert entry is not None
    assert entry.num_bytes % PAGE_BYTES == entry.data_start % PAGE_BYTES == 0
    assert [each.description for each in entry.layers] == [{"is": "Layer"}] * 2
    memory = page_memory(entry.num_bytes)
    assert EntryFile(entry).read(memory)
    found = entry.arrays(torch.from_numpy(memory))
    for (_, arrays), there in zip(layers, found, strict=True):
        for one, other in zip(arrays, there, strict=True):
            assert np.array_equal(one, other.numpy())
            assert not len(other) or other.data_ptr() % 64 == 0


def test_models_do_not_share_files(tmp_path: Path) -> None:
    PackedFolder(tmp_path, {"model": 1}).write("first", [layer(5)])
    assert PackedFolder(tmp_path, {"model": 2}).find("first") is None
    assert PackedFolder(tmp_path, {"model": 1}).find("first") is not None


def test_a_model_has_a_folder_for_each_layout(tmp_path: Path) -> None:
    """Of other files, of another arithmetic, and of other inputs of its layers."""
    file, model = tmp_path / "model.safetensors", published_config("tiny")
    config = EngineConfig(model=tmp_path, packed_dir=tmp_path / "packed")

    def path(config: EngineConfig = config, **arithmetic: str) -> Path:
        return PackedFolder.of_model(config, model, [file], arithmetic, create=False).path

    file.write_bytes(b"1")
    found = {path(dtype="float32", kernel_set="avx2")}
    found |= {path(dtype="bfloat16", kernel_set="avx2"), path(dtype="float32", kernel_set="sve")}
    found.add(path(replace(config, activations="exact"), dtype="float32", kernel_set="avx2"))
    assert path(dtype="float32", kernel_set="avx2") in found
    file.write_bytes(b"12")
    found.add(path(dtype="float32", kernel_set="avx2"))
    assert len(found) == 5


@pytest.mark.parametrize("keep", [0, 3, 40, PAGE_BYTES, PAGE_BYTES + 100])
def test_a_file_that_is_cut_is_none(keep: int, tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    folder.write("first", [layer(5000)])
    path = folder.path / "first.packed"
    os.truncate(path, keep)
    assert folder.find("first") is None


def test_a_changed_byte_of_the_header_is_noticed(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    folder.write("first", [layer(5000)])
    path = folder.path / "first.packed"
    data = bytearray(path.read_bytes())
    place = data.index(b'"Layer"') + 1
    data[place] ^= 1
    path.write_bytes(data)
    assert folder.find("first") is None


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    folder.write("first", [layer(5000)])
    path = folder.path / "first.packed"
    data = bytearray(path.read_bytes())
    data[PAGE_BYTES + 77] ^= 1
    path.write_bytes(data)
    entry = folder.find("first")
    assert entry is not None
    assert not EntryFile(entry).read(page_memory(entry.num_bytes))


def test_a_file_in_the_place_of_another_is_none(tmp_path: Path) -> None:
    """Layers of one model often have the same shapes: nothing else would tell them apart."""
    folders = [PackedFolder(tmp_path, {"model": number}) for number in range(2)]
    for folder in folders:
        for name in ("first", "second"):
            folder.write(name, [layer(5000)])
    first = folders[0].path / "first.packed"
    for other in (folders[0].path / "second.packed", folders[1].path / "first.packed"):
        shutil.copyfile(other, first)
        assert folders[0].find("first") is None
    folders[0].write("first", [layer(5000)])
    assert folders[0].find("first") is not None


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    path = folder.path / "first.packed"
    os.mkfifo(path)
    assert folder.find("first") is None
    folder.write("first", [layer(5000)])
    assert folder.find("first") is not None


def test_an_array_beyond_the_end_is_none(tmp_path: Path) -> None:
    """A header with a right checksum and wrong numbers."""
    folder = PackedFolder(tmp_path, {})
    spec = StoredLayer({"is": "Layer"}, (ArraySpec("|u1", (2**40,)),))
    folder.write("first", [(spec, [np.arange(5, dtype=np.uint8)])])
    assert folder.find("first") is None


@pytest.mark.parametrize("text", ['{"num_bytes": Infinity}', "[" * 100_000 + "]" * 100_000])
def test_a_header_of_other_values_is_none(text: str, tmp_path: Path) -> None:
    """With a right checksum: an infinite number, and more lists than can be parsed."""
    folder = PackedFolder(tmp_path, {})
    folder.write("first", [layer(5000)])
    path = folder.path / "first.packed"
    magic = path.read_bytes().partition(b"{")[0][:-16]
    numbers = (each.to_bytes(8, "little") for each in (len(text), zlib.crc32(text.encode())))
    path.write_bytes(b"".join((magic, *numbers, text.encode())))
    assert folder.find("first") is None
    assert folder.sizes(["first"]) is None


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PackedFolder(tmp_path, {})
    folder.write("first", [layer(5000)])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"is full; what is packed so far is kept") as caught:
        folder.write("second", [layer(5000)])
    assert "packed_dir" in str(caught.value)
    assert sorted(each.name for each in folder.path.glob("*pack*")) == ["first.packed"]


def test_too_little_free_space_is_refused_before_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    folder = PackedFolder(tmp_path, {})
    folder.check_room(2**30)
    with pytest.raises(UsageError, match=r"need 2\.0 GiB in .*, where 1\.0 GiB are free"):
        folder.check_room(2**31)


def test_the_least_recently_used_models_go(tmp_path: Path) -> None:
    folders = [PackedFolder(tmp_path, {"model": number}) for number in range(3)]
    for number, folder in enumerate(folders):
        folder.write("first", [layer(5000)])
        os.utime(folder.path, (number, number))
    PackedFolder(tmp_path, {"model": 0})  # used again
    size = folders[0].num_bytes
    folders[2].check_room(0, 2 * size)
    assert [path for path, _ in packed_models(tmp_path)] == [folders[2].path, folders[0].path]
    with pytest.raises(UsageError, match="more than packed_bytes"):
        folders[2].check_room(2 * size, 2 * size)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written to .*file.*packed_dir"):
        PackedFolder(tmp_path / "file", {})


def test_a_folder_that_all_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    folder.path.chmod(0o777)
    with pytest.raises(UsageError, match=r"is writable by all users, .* chmod o-w on it"):
        PackedFolder(tmp_path, {})


def test_files_are_private(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path / "new", {})
    folder.write("first", [layer(5)])
    for path in (folder.path, folder.path / "first.packed"):
        assert path.stat().st_mode & 0o077 == 0
    assert packed_folder.packed_models(tmp_path / "none") == []
