"""Weights and activations in int8: rounded at load, or as a checkpoint asks for it."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.paged.models.checkpoint.checkpoint import ModelTensors, open_checkpoint
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.linear import LinearSpec
from pagedrun.paged.models.modules.moe import MoeSpec
from pagedrun.paged.models.quant.int8 import Int8, Int8Activations
from pagedrun.paged.models.quant.linear_methods import Dense, QuantizedWeights
from pagedrun.paged.models.runnable_config import model_identity
from pagedrun.paged.values.engine_config import DTYPE_BYTES
from pagedrun.paged.values.errors import ModelError
from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path
from tests.conftest import MakeModel
from tests.support.eight_bit_writers import blocks
from tests.support.low_bit_writers import compressed
from tests.support.quantized_checkpoints import write

PROMPTS = [[7, 8, 9], list(range(5, 60)), [1], *([3, each] for each in range(20, 33))]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=2)
SCALE = "weight_scale"
DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def answers(folder: Path, **engine: Any) -> list[Any]:
    llm = LLM(folder, device="cpu", **engine)
    return [done.outputs for done in llm.generate(PROMPTS, PARAMS)]


def w8a8(inputs: dict[str, Any] | None = DYNAMIC, **weights: Any) -> dict[str, Any]:
    """Return a quantization_config of int8 weights, and activations as `inputs` says."""
    fields = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", **weights}
    config = compressed("int-quantized", fields, ignore=["lm_head"])
    config["config_groups"]["group_0"]["input_activations"] = inputs
    return config


def linears(folder: Path, quantization: str = "auto") -> list[LinearSpec]:
    network = ModelConfig.from_folder(folder).held_as(quantization, folder).network
    parts = [part for layer in network.layers for part in layer.parts]
    return [part for part in (*parts, network.head) if isinstance(part, LinearSpec)]


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def dense(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    return make_model("qwen2", "int8", tie_word_embeddings=request.param, dtype="bfloat16")


def test_a_row_has_the_same_bytes_whatever_the_batch(dense: Path) -> None:
    alone, together = (
        answers(dense, quantization="int8", max_num_seqs=number) for number in (1, 16)
    )
    assert alone == together
    assert alone != answers(dense)  # as it would be if nothing were rounded


def test_answers_are_those_of_rounded_weights_and_rows(dense: Path, tmp_path: Path) -> None:
    """Of a model whose weights are rounded beforehand nothing is lost by rounding them again."""
    shutil.copytree(dense, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, weight in tensors.items():
        if name.endswith(("_proj.weight", "lm_head.weight")):
            codes, scales = CpuBackend().quantize_rows(weight)
            tensors[name] = codes.float() * scales[:, None]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    given, rounded = (
        answers(folder, quantization="int8", dtype="float32") for folder in (dense, tmp_path)
    )
    tokens = [[out.token_ids for row in each for out in row] for each in (given, rounded)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_memory_is_what_the_description_says(dense: Path, dtype: str) -> None:
    held = {}
    for quantization in ("auto", "int8"):
        llm = LLM(dense, device="cpu", quantization=quantization, dtype=dtype)
        llm.generate(PROMPTS[:1], PARAMS)
        held[quantization] = llm.report["memory"]["weights"]
        assert llm.report["config"]["quantization"] == quantization
    size = DTYPE_BYTES[dtype]
    network = ModelConfig.from_folder(dense).held_as("int8", dense).network
    assert held["int8"] == network.num_bytes(size)
    table = network.embedding.num_bytes(size)
    layers = (held["int8"] - table) / (held["auto"] - table)
    assert 1 < layers * size < 1.2  # a byte a weight, and a scale a row of them


def test_what_is_delicate_stays_as_it_is(make_model: MakeModel) -> None:
    folder = make_model("qwen2_moe", "int8")
    network = ModelConfig.from_folder(folder).held_as("int8", folder).network
    for layer in network.layers:
        mixture = layer.ffn  # type: ignore[attr-defined]
        assert isinstance(mixture, MoeSpec)
        assert mixture.router.linear.method == Dense()
        assert mixture.shared_gate is not None
        assert mixture.shared_gate.method == Dense()
        assert mixture.shared is not None
        assert mixture.shared.down.method == Int8()
    assert answers(folder, quantization="int8", dtype="float32") != answers(folder, dtype="float32")


def test_a_model_that_is_quantised_is_not_quantised_again(dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, {"quant_method": "fp8"}, blocks(1, 0, name=SCALE))
    with pytest.raises(ModelError, match=r"already quantized, so .*quantization"):
        LLM(tmp_path, device="cpu", quantization="int8")


def test_weights_that_are_no_numbers_are_refused(dense: Path, tmp_path: Path) -> None:
    shutil.copytree(dense, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][2, 3] = torch.inf
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj.weight: .* not finite"):
        LLM(tmp_path, device="cpu", quantization="int8")


def test_stored_prefixes_are_told_apart(dense: Path) -> None:
    config = ModelConfig.from_folder(dense)
    kinds = [config.held_as(each, dense) for each in ("auto", "none", "int8")]
    found = [model_identity(each)["config"] for each in kinds]
    assert found[0] == found[1] != found[2]


def integer_product(
    x: Tensor, codes: Iterable[Tensor], scales: Iterable[Tensor], bias: Tensor | None
) -> Tensor:
    """Return what float32 rows give, as integers with factors: written in numpy, step by step."""
    rows = x.numpy()
    largest = np.abs(rows).max(axis=1, keepdims=True)
    of_row = np.rint(rows * (np.float32(127.0) / largest)).astype(np.int64)
    weights = np.concatenate([each.numpy().astype(np.int64) for each in codes])
    sums = (of_row @ weights.T).astype(np.float32)
    factors = np.concatenate([each.float().reshape(-1).numpy() for each in scales])
    y = sums * (largest / np.float32(127.0) * factors)
    return torch.from_numpy(y if bias is None else y + bias.numpy())


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_that_asks_for_it_is_computed_in_integers(
    scale_dtype: torch.dtype, make_model: MakeModel, tmp_path: Path
) -> None:
    dense = make_model("qwen2", "w8a8", tie_word_embeddings=False)
    write(dense, tmp_path, w8a8(), blocks(1, 0, torch.int8, SCALE, scale_dtype))
    stored = load_file(tmp_path / "model.safetensors")
    network = ModelConfig.from_folder(tmp_path).network
    with open_checkpoint(tmp_path) as checkpoint:
        tensors = ModelTensors(checkpoint, network)
        here = torch.device("cpu")
        source = WeightSource(
            tensors.read, torch.float32, here, CpuBackend(), stored=tensors.stored
        )
        for linear in linears(tmp_path):
            layer, names = linear.load(source), [part.name for part in linear.parts]
            x = torch.randn(7, linear.in_features, generator=torch.Generator().manual_seed(1))
            if names == ["lm_head"]:  # which is stored in plain numbers
                assert layer.num_bytes == stored["lm_head.weight"].nbytes
                continue
            biases = [stored[f"{name}.bias"] for name in names] if linear.has_bias else []
            expected = integer_product(
                x,
                [stored[f"{name}.weight"] for name in names],
                [stored[f"{name}.{SCALE}"] for name in names],
                torch.cat(biases) if biases else None,
            )
            assert torch.equal(layer(x), expected), names
    llm = LLM(tmp_path, device="cpu", quantization="int8")  # which is what it is
    llm.generate(PROMPTS[:1], PARAMS)
    assert llm.report["memory"]["weights"] == network.num_bytes(dtype_bytes=4)


@pytest.mark.parametrize(
    "config",
    [
        w8a8(None),
        w8a8({**DYNAMIC, "dynamic": False, "strategy": "tensor"}),
        w8a8({**DYNAMIC, "symmetric": False}),
        w8a8({**DYNAMIC, "num_bits": 4}),
        w8a8(strategy="group", group_size=32),
    ],
    ids=["weights alone", "static", "asymmetric", "four bits", "groups"],
)
def test_other_activations_are_not_rounded(
    config: dict[str, Any], make_model: MakeModel, tmp_path: Path
) -> None:
    folder = make_model("qwen2", "w8a8", tie_word_embeddings=False)
    fields = {**json.loads((folder / "config.json").read_text()), "quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert all(isinstance(linear.method, QuantizedWeights) for linear in linears(tmp_path))
    fields["quantization_config"] = w8a8()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert all(isinstance(linear.method, Int8Activations) for linear in linears(tmp_path))


def test_the_demo_answers_as_it_does_in_float32() -> None:
    rows = [json.loads(line) for line in demo_prompts_path().read_text().splitlines()[:48]]
    params = SamplingParams(max_tokens=24)
    found = [
        [
            done.outputs[0].token_ids
            for done in LLM(
                demo_model_folder(), device="cpu", dtype="float32", quantization=quantization
            ).generate([row["messages"] for row in rows], params)
        ]
        for quantization in ("auto", "int8")
    ]
    agreed = sum(one == other for one, other in zip(*found, strict=True))
    assert agreed >= 47  # of 48, all of which agreed where it was measured
