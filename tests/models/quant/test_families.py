"""Quantised checkpoints of families whose tensors are not those of Llama."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun import LLM, SamplingParams
from tests.conftest import MakeModel
from tests.support.eight_bit_writers import blocks
from tests.support.families import save_tiny
from tests.support.low_bit_writers import GptqWriter
from tests.support.quantized_checkpoints import Writer, read, write, write_plain

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
FP8 = {"quant_method": "fp8", "weight_block_size": [24, 40]}


# Rotations of neighbours with a fused gate, all projections fused, biases everywhere.
@pytest.mark.parametrize("name", ["glm4", "phi3", "ernie4_5"])
@pytest.mark.parametrize(
    ("quantization", "writer"),
    [(GPTQ, GptqWriter(symmetric=False, shuffled=True)), (FP8, blocks(24, 40))],
    ids=["gptq", "fp8"],
)
def test_weights_are_put_where_the_plain_ones_are(
    name: str, quantization: dict[str, Any], writer: Writer, tmp_path: Path
) -> None:
    save_tiny(name, tmp_path / "given")
    weights = write(tmp_path / "given", tmp_path / "codes", quantization, writer)
    write_plain(tmp_path / "given", tmp_path / "plain", weights)
    found, expected = read(tmp_path / "codes"), read(tmp_path / "plain")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], weight) for each, weight in expected.items())


def test_a_decoder_beside_a_part_for_images(make_model: MakeModel, tmp_path: Path) -> None:
    dense = make_model("mistral", "nested-quantized", tie_word_embeddings=False)
    expected = write(dense, tmp_path, FP8, blocks(24, 40))
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "mistral3", "tie_word_embeddings": False}
    outer["quantization_config"] = config.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps({**outer, "text_config": config}))
    path = tmp_path / "model.safetensors"
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(path).items()}
    save_file({**tensors, "vision_tower.weight": torch.ones(1)}, path)
    found = read(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def added(head: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
    tensors.update(head)


def test_a_head_in_few_bits(make_model: MakeModel, tmp_path: Path) -> None:
    dense = make_model("llama", "quantized-head", tie_word_embeddings=False)
    stored, weight = blocks(24, 40)(load_file(dense / "model.safetensors")["lm_head.weight"])
    heads = {
        "codes": {f"lm_head.{end}": each for end, each in stored.items()},
        "plain": {"lm_head.weight": weight},
    }
    answers = []
    for name, head in heads.items():
        write(dense, tmp_path / name, FP8, blocks(24, 40), change=partial(added, head))
        params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=3)
        llm = LLM(tmp_path / name, dtype="float32", device="cpu")
        answers.append(llm.generate([[7, 8]], params)[0].outputs)
    assert answers[0] == answers[1]
