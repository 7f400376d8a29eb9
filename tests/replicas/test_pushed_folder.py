from pathlib import Path

import pytest

from pagedrun.paged.replicas import ray_actor as pushed_folder
from pagedrun.paged.replicas.ray_actor import PushedFolder
from pagedrun.paged.values.errors import ModelError

CONTENTS = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 3, "empty.json": b""}


class Store:
    """An object store: what is put is known by its number."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.num_read = 0

    def put(self, piece: bytes) -> int:
        self.pieces.append(piece)
        return len(self.pieces) - 1

    def get(self, handle: int) -> bytes:
        self.num_read += 1
        return self.pieces[handle]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pushed_folder, "PIECE_BYTES", 100)
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


def test_a_pushed_folder_arrives_whole_and_without_code(model: Path, tmp_path: Path) -> None:
    store = Store()
    pushed = PushedFolder.of(model, store.put)
    (tmp_path / "cache").mkdir()
    folder = pushed.unpack(store.get, tmp_path / "cache")
    assert {name: (folder / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert not list(folder.glob("*.py"))
    num_read = store.num_read
    assert pushed.unpack(store.get, tmp_path / "cache") == folder
    assert store.num_read == num_read  # once a node


def test_a_folder_that_was_cut_off_or_damaged_on_its_way_is_never_used(
    model: Path, tmp_path: Path
) -> None:
    store = Store()
    pushed = PushedFolder.of(model, store.put)
    (tmp_path / "cache" / pushed.sha256).mkdir(parents=True)  # of a process that was killed
    (tmp_path / "cache" / pushed.sha256 / "model.safetensors").write_bytes(b"half")
    whole, store.pieces[-1] = store.pieces[-1], b"damaged"
    with pytest.raises(ModelError, match="damaged"):
        pushed.unpack(store.get, tmp_path / "cache")
    store.pieces[-1] = whole
    folder = pushed.unpack(store.get, tmp_path / "cache")
    assert (folder / "model.safetensors").read_bytes() == CONTENTS["model.safetensors"]
