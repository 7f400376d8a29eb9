"""A GGUF file is a stranger's: damaged or forged, it ends in one sentence, and soon."""

import os
import random
import struct
from pathlib import Path

import pytest

from pagedrun.paged.files.gguf import GgufFile
from pagedrun.paged.models.checkpoint.checkpoint import GgufCheckpoint, ModelTensors
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.support.families import save_tiny
from tests.support.gguf_writer import write_gguf


@pytest.fixture(scope="module")
def good(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(make_model("llama", "gguf-hostile"), path, lambda name: "Q8_0")
    return path.read_bytes()


def opened(path: Path) -> None:
    """Do everything that comes before weights are read."""
    with GgufCheckpoint.open(path) as checkpoint:
        ModelTensors(checkpoint, ModelConfig.from_folder(path).network)


def refusal(path: Path) -> str:
    """Return why a file is refused, nothing if it is not: many a byte can be another."""
    try:
        opened(path)
    except ModelError as error:
        return str(error)
    return ""


def header_end(data: bytes) -> int:
    return data.index(b"blk.0") if b"blk.0" in data else len(data) // 4


def mutated(data: bytes, seed: int) -> bytes:
    """Return a file with a few bytes changed, cut out, or cut off, most of them in its header."""
    choose, changed = random.Random(seed), bytearray(data)
    end = header_end(data) + 2000
    for _ in range(choose.randint(1, 4)):
        at = choose.choice([choose.randrange(24), choose.randrange(end)])
        kind = choose.randrange(4)
        if kind == 0:
            changed[at % len(changed)] ^= 1 << choose.randrange(8)
        elif kind == 1:
            changed[at : at + 8] = struct.pack("<Q", choose.choice([0, 2**31, 2**63, 2**64 - 1]))
        elif kind == 2:
            del changed[at : at + choose.randint(1, 16)]
        else:
            del changed[choose.randrange(24, len(changed)) :]
    return bytes(changed)


def check_mutations(data: bytes, path: Path, seeds: range) -> None:
    refused = 0
    for seed in seeds:
        path.write_bytes(mutated(data, seed))
        sentence = refusal(path)
        assert "\n" not in sentence
        assert len(sentence) < 800
        refused += bool(sentence)
    assert refused > len(seeds) // 2


def test_damaged_headers_end_in_a_sentence(good: bytes, tmp_path: Path) -> None:
    check_mutations(good, tmp_path / "model.gguf", range(150))


@pytest.mark.long
def test_thousands_of_damaged_headers_end_in_a_sentence(good: bytes, tmp_path: Path) -> None:
    check_mutations(good, tmp_path / "model.gguf", range(1_000, 6_000))


@pytest.mark.parametrize("family", ["gemma3", "lfm2", "phi3"])
def test_damaged_headers_of_other_architectures(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path / "folder")
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path / "folder", path, lambda name: "Q8_0")
    check_mutations(path.read_bytes(), path, range(60))


def test_damaged_headers_of_mixtures(make_model: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(make_model("mixtral", "gguf-hostile"), path, lambda name: "Q8_0")
    check_mutations(path.read_bytes(), path, range(60))


def field(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def header(num_tensors: int, fields: list[bytes]) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(fields)) + b"".join(fields)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04" * 20, "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (header(2**60, []), "tensors that it declares"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "values that it declares"),
        # What keeps a reader busy that believes it: an array with 2^60 items.
        (header(0, [field("a", 9, struct.pack("<IQ", 0, 2**60))]), "numbers that it declares"),
        (header(0, [field("a", 9, struct.pack("<IQ", 8, 2**60))]), "strings that it declares"),
        # Arrays of arrays could be nested for ever.
        (header(0, [field("a", 9, struct.pack("<IQ", 9, 1) * 50)]), "type 9"),
        (header(0, [field("a", 8, struct.pack("<Q", 2**63))]), "characters that it declares"),
        (header(0, [field("a", 4, b"\0" * 4)] * 2), "twice"),
        (header(0, [field("general.alignment", 4, b"\0" * 4)]), "alignment"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs"),
    ],
)
def test_a_forged_file_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=why):
        GgufFile.open(path)


def placed(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    text = struct.pack("<Q", len(name)) + name.encode()
    numbers = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return header(1, []) + text + numbers + b"\0" * 4096


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (placed("a", [32, 2], 8, 2**40), "ends before"),
        (placed("a", [2048], 0, 0), "ends before"),  # within the tensor
        (placed("a", [2**40, 2**40], 0, 0), "shape"),
        (placed("a", [33], 8, 0), "shape"),
        (placed("a", [0], 0, 0), "shape"),
        (placed("a", [32], 8, 0)[:50], "within its header"),
        (placed("a", [256], 16, 0), "type 16"),
        (placed("a", [1] * 5, 0, 0), "5 dimensions"),
    ],
)
def test_a_tensor_that_cannot_be_there_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=why):
        GgufFile.open(path)


def test_a_scale_that_is_no_number_is_found(make_model: MakeModel, tmp_path: Path) -> None:
    from pagedrun import LLM

    path = tmp_path / "model.gguf"
    folder = make_model("llama", "gguf-hostile")
    write_gguf(folder, path, lambda name: "Q8_0")
    tensor = GgufFile.open(path).tensors["blk.0.ffn_up.weight"]
    data = bytearray(path.read_bytes())
    data[tensor.offset : tensor.offset + 2] = b"\xff\x7f"  # a NaN
    path.write_bytes(bytes(data))
    with pytest.raises(ModelError, match=r"mlp\.up_proj.*not finite"):
        LLM(path, tokenizer=folder)


def test_parts_that_are_missing_or_not_the_first(tmp_path: Path, good: bytes) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(good)
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf does not exist"):
        GgufFile.open(tmp_path / "m-00001-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(good)
    with pytest.raises(ModelError, match="too; download"):
        GgufFile.open(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(ModelError, match=r"pass the first: m-00001-of-00002\.gguf"):
        GgufFile.open(tmp_path / "m-00002-of-00002.gguf")


def test_parts_with_fewer_tensors_than_the_first_says(tmp_path: Path) -> None:
    count = field("split.tensors.count", 5, struct.pack("<i", 2))
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(header(0, [count]))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(placed("a", [32], 8, 0))
    with pytest.raises(ModelError, match=r"m-00001-of.* 1 tensors instead of 2; download"):
        GgufFile.open(tmp_path / "m-00001-of-00002.gguf")


def test_an_architecture_that_does_not_run_is_named(tmp_path: Path) -> None:
    value = struct.pack("<Q", 5) + b"rwkv6"
    (tmp_path / "m.gguf").write_bytes(header(0, [field("general.architecture", 8, value)]))
    with pytest.raises(ModelError, match=r"rwkv6.*llama, qwen2, qwen3,"):
        ModelConfig.from_folder(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", ["a named pipe", "a device", "missing"])
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="does not exist" if kind == "missing" else kind):
        GgufFile.open(path)
