"""Checkpoint must read what save_pretrained writes, and name what is wrong with anything else."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pagedrun.paged.models.checkpoint.checkpoint import Checkpoint
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel

INDEX = "model.safetensors.index.json"


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Checkpoint.open(folder)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.fixture
def sharded(make_model: MakeModel, tmp_path: Path) -> Path:
    """A copy of a model in several shards, free to be broken."""
    source = make_model("qwen3", "sharded", max_shard_size="60KB")
    folder = tmp_path / "model"
    shutil.copytree(source, folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def rewrite_index(folder: Path, **changes: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"].update(changes)
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("max_shard_size", ["1GB", "60KB"])
def test_tensors_are_those_that_transformers_loads(
    make_model: MakeModel, dtype: str, max_shard_size: str
) -> None:
    import transformers

    folder = make_model("llama", "read", dtype=dtype, max_shard_size=max_shard_size)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto")
    state = model.state_dict()
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint.names == state.keys()
        checkpoint.check({name: tuple(tensor.shape) for name, tensor in state.items()})
        for name, tensor in state.items():
            read = checkpoint.tensor(name)
            assert read.dtype == tensor.dtype == getattr(torch, dtype)
            assert checkpoint.stored(name).shape == read.shape
            assert torch.equal(read, tensor)


def test_tensors_outlive_the_checkpoint(make_model: MakeModel) -> None:
    folder = make_model("llama", "outlive")
    with Checkpoint.open(folder) as checkpoint:
        tensor = checkpoint.tensor("model.norm.weight")
        expected = tensor.clone()
    del checkpoint
    assert torch.equal(tensor, expected)


def test_the_single_file_is_preferred_to_strays(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    assert torch.equal(Checkpoint.open(tmp_path).tensor("a"), torch.ones(2))


def test_without_an_index_all_files_count(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "two.safetensors")
    assert Checkpoint.open(tmp_path).names == {"a", "b"}


def test_links_as_in_the_hub_cache_are_followed(sharded: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(shards(sharded)):
        target = path.rename(blobs / str(number))
        path.symlink_to(target)
    assert "model.norm.weight" in Checkpoint.open(sharded).names


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert "model.safetensors is missing" in refusal(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "two.safetensors")
    message = refusal(tmp_path)
    assert "one.safetensors" in message
    assert "two.safetensors" in message


def test_a_missing_shard_is_named(sharded: Path) -> None:
    lost = shards(sharded)[1]
    lost.unlink()
    assert lost.name in refusal(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/passwd",
        "/tmp/x.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "..",
        "",
        "pytorch_model.bin",
        ".hidden.safetensors",
        "x\0.safetensors",
        "x\n.safetensors",
    ],
)
def test_a_shard_name_that_leads_elsewhere_is_refused(sharded: Path, name: str) -> None:
    outside = sharded.parent / "model.safetensors"
    shutil.copy(shards(sharded)[0], outside)  # there to be read, if it were followed
    rewrite_index(sharded, **{"model.norm.weight": name})
    assert "not a *.safetensors file in this folder" in refusal(sharded)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x", {"a": 1}, {"a": None}])
def test_a_weight_map_of_the_wrong_kind_is_refused(sharded: Path, weight_map: object) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert "weight_map" in refusal(sharded)


def test_an_index_that_points_to_the_wrong_shard_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())["weight_map"]
    other = next(path.name for path in shards(sharded) if path.name != index["model.norm.weight"])
    rewrite_index(sharded, **{"model.norm.weight": other})
    assert "model.norm.weight" in refusal(sharded)


def test_broken_index_json_is_named(sharded: Path) -> None:
    (sharded / INDEX).write_text('{"weight_map"')
    assert INDEX in refusal(sharded)


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


CORRUPT = {
    "empty": b"",
    "short": b"\x10\0\0",
    "header past the end": struct.pack("<Q", 1000) + b"{}",
    "header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "header of 200 MB": struct.pack("<Q", 200_000_000) + b"{" + b" " * 1000,
    "no JSON": struct.pack("<Q", 4) + b"[[[[",
    "offsets past the end": header({"a": entry([4], 0, 16)}, b"\0" * 8),
    "overlap": header({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12),
    "gap": header({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12),
    "shape does not fit": header({"a": entry([3], 0, 8)}, b"\0" * 8),
    "shape overflows": header({"a": entry([2**62, 2**62], 0, 8)}, b"\0" * 8),
    "unknown dtype": header({"a": entry([2], 0, 8, "F7")}, b"\0" * 8),
    "bytes left over": header({"a": entry([1], 0, 4)}, b"\0" * 8),
}


@pytest.mark.parametrize("case", CORRUPT)
def test_a_corrupt_file_is_named(tmp_path: Path, case: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(CORRUPT[case])
    message = refusal(tmp_path)
    assert str(tmp_path / "model.safetensors") in message
    assert "corrupt" in message


@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_a_truncated_shard_is_named(sharded: Path, kept: float) -> None:
    victim = shards(sharded)[1]
    content = victim.read_bytes()
    victim.write_bytes(content[: int(len(content) * kept)])
    message = refusal(sharded)
    assert victim.name in message
    assert "truncated" in message


def test_a_git_lfs_pointer_is_named(sharded: Path) -> None:
    shards(sharded)[0].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    message = refusal(sharded)
    assert shards(sharded)[0].name in message
    assert "git lfs pull" in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pytorch_model.bin", "run code"),
        ("consolidated.00.pth", "run code"),
    ],
)
def test_other_formats_are_refused_unopened(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    message = refusal(tmp_path)
    assert name in message
    assert words in message
    assert "safetensors" in message


def test_a_gguf_file_in_a_folder_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "pass the path of that file" in refusal(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    assert "is empty" in refusal(tmp_path)
    assert "no such folder" in refusal(tmp_path / "absent")


def test_check_lists_missing_extra_and_misshapen(tmp_path: Path) -> None:
    tensors = {f"extra.{number}": torch.ones(1) for number in range(7)}
    save_file({**tensors, "a": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        Checkpoint.open(tmp_path).check({"a": (3, 2), "b": (1,), "c": (1,)})
    message = str(caught.value)
    assert "missing: b, c" in message
    assert "extra: extra.0, extra.1, extra.2, extra.3 and 3 more" in message
    assert "a is [2, 3] and must be [3, 2]" in message


def test_check_lets_optional_tensors_pass_but_not_their_like(tmp_path: Path) -> None:
    names = ("a", "lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    save_file({name: torch.ones(1) for name in names}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"a": (1,)}, optional=["lm_head.weight", "rotary_emb.inv_freq"])
    with pytest.raises(ModelError, match=r"extra: model\.layers\.0\.self_attn\.rotary_emb"):
        checkpoint.check({"a": (1,)}, optional=["lm_head.weight", "emb.inv_freq"])


def test_other_dtypes_are_refused_only_where_they_are_used(tmp_path: Path) -> None:
    save_file(
        {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int8)}, tmp_path / "x.safetensors"
    )
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check({"a": (1,)}, optional=["b"])
    with pytest.raises(ModelError, match=r"tensor b is stored as I8"):
        checkpoint.check({"a": (1,), "b": (1,)})
    with pytest.raises(ModelError, match=r"tensor b is stored as I8"):
        checkpoint.tensor("b")
    with pytest.raises(ModelError, match="tensor c is missing"):
        checkpoint.tensor("c")
