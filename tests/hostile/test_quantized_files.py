"""Quantised checkpoints are a stranger's: whatever is in their tensors and in config.json, they are
refused with a sentence, or their weights are finite numbers."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun.paged.files.gguf import GgufFile
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.support.gguf_writer import write_gguf
from tests.support.quantized_checkpoints import read, write
from tests.support.quantized_forms import FP8, PACKED

Tensors = dict[str, Tensor]

FORMS = {**PACKED, **FP8}
DTYPES = (
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32),
    *(torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bool),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 4, 8, 64, 128, 2**31, 10**30, 0.5, "", "gptq", "group"),
    *([], [0, 0], [24, 40, 1], [1, 10**9], {}, {"weights": {}}),
)


def random_bits(tensor: Tensor, choose: random.Random) -> Tensor:
    made = torch.tensor(list(choose.randbytes(max(tensor.nbytes, 1))), dtype=torch.uint8)
    return made[: tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)


def one_number(tensor: Tensor, choose: random.Random) -> Tensor:
    """Change the bits of one number."""
    changed = tensor.clone().flatten()
    if changed.numel():
        at = choose.randrange(changed.numel())
        changed[at : at + 1] = random_bits(changed[at : at + 1], choose)
    return changed.reshape(tensor.shape)


def other_shape(tensor: Tensor, choose: random.Random) -> Tensor:
    if tensor.dim() != 2:
        return tensor[None]
    shapes = [tensor.T, tensor[:0], tensor[1:], torch.cat([tensor, tensor]), tensor.reshape(-1)]
    return choose.choice([*shapes, tensor[None], tensor[:1]])


# What becomes of a tensor.
DAMAGES: tuple[Callable[[Tensor, random.Random], Tensor], ...] = (
    random_bits,
    one_number,
    other_shape,
    lambda tensor, choose: tensor.float().to(choose.choice(DTYPES)),
    lambda tensor, choose: torch.zeros_like(tensor),
)


def damaged(tensors: Tensors, choose: random.Random) -> Tensors:
    """Return tensors of which one to three are not what they were."""
    found = dict(tensors)
    for _ in range(choose.randint(1, 3)):
        name, kind = choose.choice(sorted(found)), choose.randrange(8)
        if kind == 0:
            del found[name]
        elif kind == 1:
            found[name], other = found[choose.choice(sorted(found))], name
            found[f"{other.rpartition('.')[0]}.{choose.choice(('qzeros', 'weight', 'g_idx'))}"] = (
                tensors.get(other, torch.zeros(1))
            )
        else:
            found[name] = choose.choice(DAMAGES)(found[name], choose)
    return {name: each.clone().contiguous() for name, each in found.items()}


def refusal(path: Path) -> str:
    """Return why a model is refused; nothing if it is not, whose weights are then numbers."""
    try:
        weights = read(path)
    except ModelError as error:
        return str(error)
    assert all(weight.isfinite().all() for weight in weights.values())
    return ""


def check_sentence(sentence: str) -> None:
    assert sentence.isprintable()
    assert len(sentence) < 1000


def check_damages(given: Path, seeds: range) -> None:
    """Damage a checkpoint's tensors, its configuration, or its file."""
    weights, config = given / "model.safetensors", given / "config.json"
    tensors, fields, data = load_file(weights), json.loads(config.read_text()), weights.read_bytes()
    refused = 0
    for seed in seeds:
        choose = random.Random(seed)
        kind, quantization = choose.randrange(6), dict(fields["quantization_config"])
        if kind == 0:
            quantization[choose.choice(sorted(quantization))] = choose.choice(VALUES)
        config.write_text(json.dumps({**fields, "quantization_config": quantization}))
        if kind == 1:
            broken = bytearray(data)
            broken[choose.randrange(2000)] = choose.randrange(256)
            weights.write_bytes(broken[: choose.randrange(len(broken))] if seed % 2 else broken)
        else:
            save_file(damaged(tensors, choose) if kind > 1 else tensors, weights)
        sentence = refusal(given)
        check_sentence(sentence)
        refused += bool(sentence)
    assert refused > len(seeds) // 3, "most damages must show"


def check_blocks(path: Path, seeds: range) -> None:
    """Damage the blocks of a GGUF file."""
    data, tensors = path.read_bytes(), list(GgufFile.open(path).tensors.values())
    refused = 0
    for seed in seeds:
        choose, broken = random.Random(seed), bytearray(data)
        for _ in range(choose.randint(1, 40)):
            tensor = choose.choice(tensors)
            at = tensor.offset + choose.randrange(tensor.num_bytes)
            broken[at] = choose.choice([choose.randrange(256), 0x7C, 0x7F, 0xFC, 0xFF])
        path.write_bytes(broken)
        sentence = refusal(path)
        check_sentence(sentence)
        refused += bool(sentence)
    path.write_bytes(data)
    assert 0 < refused < len(seeds)


@pytest.fixture
def dense(make_model: MakeModel) -> Path:
    return make_model("qwen2", "quantized", tie_word_embeddings=False)


@pytest.mark.parametrize("form", ["awq", "gptq, scattered groups", "packed", "fp8, blocks"])
def test_damaged_checkpoints(form: str, dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, *FORMS[form])
    check_damages(tmp_path, range(15))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_hundreds_of_damaged_checkpoints_of_each_format(
    form: str, dense: Path, tmp_path: Path
) -> None:
    write(dense, tmp_path, *FORMS[form])
    check_damages(tmp_path, range(1_000, 1_200))


@pytest.mark.parametrize("kind", ["Q8_0"])
def test_damaged_blocks(kind: str, make_model: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(make_model("llama", "gguf-hostile"), path, lambda name: kind)
    check_blocks(path, range(20))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"])
def test_hundreds_of_damaged_blocks_of_each_kind(
    kind: str, make_model: MakeModel, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 16}
    folder = make_model("llama", "gguf-hostile-wide", **sizes, head_dim=16)
    path = tmp_path / "model.gguf"
    write_gguf(folder, path, lambda name: kind)
    check_blocks(path, range(300))
