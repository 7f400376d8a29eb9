"""What is in the prefix store and not to be used: damaged, of another model, of somebody else."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, find_entries
from pagedrun.paged.cache.prefix_store.prefix_store import PrefixStore
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.values.errors import UsageError
from tests.whole.prefix_store.stored_runs import PREFIX_TOKENS, Ran, run


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * place)] ^= 4
    path.write_bytes(data)


def flip_header(path: Path) -> None:
    """Change a token in the header, which stays JSON."""
    data = path.read_bytes()
    at = data.index(b"token_ids") + len(b'token_ids\\":[')
    digit = data[at]
    path.write_bytes(data[:at] + bytes([digit ^ 1]) + data[at + 1 :])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "bit in the length": lambda path: flip(path, 0.0),
    "token in the header": flip_header,
    "bit in the middle": lambda path: flip(path, 0.5),
    "bit at the end": lambda path: flip(path, 1.0),
    "cut in the header": lambda path: os.truncate(path, 100),
    "cut in the keys": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_told_of_once_and_never_used(
    damage: str, rows: Path, model: Path, copied: Path, filled: tuple[Path, Ran]
) -> None:
    (path,) = find_entries(copied)
    DAMAGES[damage](path)
    ran = run(rows, model, copied)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] == 0
    assert ran.store["ignored_files"] == 1
    (warning,) = ran.warnings
    assert path.name in warning
    assert "damaged" in warning
    assert str(copied) in warning
    again = run(rows, model, copied)  # the first one has put a good one in its place
    assert again.store["loaded_tokens"] == PREFIX_TOKENS
    assert again.warnings == []


class SmallPieces(LocalModel):
    """Stores prefixes in pieces of at most 256 KiB."""

    def load_engine(self) -> Engine:
        engine = super().load_engine()
        config = engine.config
        assert config.prefix_store is not None
        store = PrefixStore(
            Path(config.prefix_store),
            config.prefix_store_bytes,
            sorted(config.model.glob("*.safetensors")),
            max_entry_bytes=2**18,
        )
        return Engine(config, replace(engine.loaded, prefix_store=store), engine.policy)


def test_pieces_of_a_long_prefix_are_as_good_as_the_whole(
    rows: Path, model: Path, store: Path, filled: tuple[Path, Ran]
) -> None:
    """Where one piece is damaged what stands before it is used, and it is stored again."""
    run(rows, model, store, SmallPieces)
    pieces = {StoredPrefix.read(path).start: path for path in find_entries(store)}
    assert len(pieces) == 4
    assert run(rows, model, store, SmallPieces).report["tokens"]["computed"] == 26
    flip(pieces[512], 0.7)
    ran = run(rows, model, store, SmallPieces)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] == 512
    assert len(ran.warnings) == 1
    assert run(rows, model, store, SmallPieces).report["tokens"]["computed"] == 26


@pytest.mark.parametrize(
    ("what", "change"),
    [("--dtype", {"dtype": "bfloat16"}), ("--block-size", {"block_size": 32}), ("weights", {})],
)
def test_what_is_of_another_model_is_told_of_once_and_never_used(
    what: str,
    change: dict[str, Any],
    rows: Path,
    model: Path,
    copied: Path,
    filled: tuple[Path, Ran],
    tmp_path: Path,
) -> None:
    other = model
    if not change:
        other = tmp_path / "other"
        shutil.copytree(model, other)
        tensors = load_file(other / "model.safetensors")
        tensors["model.layers.0.self_attn.k_proj.weight"][0, 0] += 1
        save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    expected = run(rows, other, None, **change)
    got = run(rows, other, copied, **change)
    assert got.answers == expected.answers
    assert got.store["loaded_tokens"] == 0
    (warning,) = got.warnings
    assert what in warning
    both = run(rows, other, copied, **change)  # now the store has both
    assert both.store["loaded_tokens"] == PREFIX_TOKENS
    assert both.warnings == []
    assert run(rows, model, copied).store["loaded_tokens"] == PREFIX_TOKENS


def test_a_file_under_another_models_name_is_not_believed(
    rows: Path, model: Path, copied: Path, filled: tuple[Path, Ran]
) -> None:
    before = set(find_entries(copied))
    run(rows, model, copied, block_size=32)
    (other,) = set(find_entries(copied)) - before
    (ours,) = before
    other.rename(other.with_name(ours.name[:16] + other.name[16:]))
    ours.unlink()
    ran = run(rows, model, copied)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] == 0
    (warning,) = ran.warnings
    assert "another model" in warning


def test_folders_that_are_refused(rows: Path, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder, why in (
        (file, "not a folder"),
        (other, "contains other files"),
        (open_to_all, "writable by all users"),
        (tmp_path / "no" / "parent", "cannot be used"),
    ):
        with pytest.raises(UsageError, match=why):
            run(rows, model, folder)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="prefix_caching=False"):
        run(rows, model, tmp_path / "store", prefix_caching=False)
