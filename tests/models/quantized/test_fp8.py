"""Checkpoints in FP8: what their weights are, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.models.quantized.checkpoints import Writer, read, write, write_plain
from tests.models.quantized.eight_bits import blocks, shaped

E8M0 = torch.float8_e8m0fnu
SCALE = "weight_scale"
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40]}
PLAIN = {"quant_method": "fp8", "activation_scheme": "static"}
# 64, 32 and 96 rows and columns: the last block is smaller in both directions.
FORMS: dict[str, tuple[dict[str, Any], Writer]] = {
    "blocks": (BLOCKS, blocks(24, 40)),
    "blocks, bfloat16": (BLOCKS, blocks(24, 40, scale_dtype=torch.bfloat16)),
    "blocks, powers of two": (BLOCKS, blocks(24, 40, scale_dtype=E8M0)),
    "rows": (PLAIN, blocks(1, 0, name=SCALE)),
    "rows, flat": (PLAIN, shaped(blocks(1, 0, name=SCALE), SCALE, -1)),
    "whole": (PLAIN, shaped(blocks(0, 0), "weight_scale_inv")),
    "whole, of one number": (PLAIN, shaped(blocks(0, 0, name=SCALE), SCALE, 1)),
    "of another name": ({"quant_method": "fbgemm_fp8"}, blocks(1, 0, name=SCALE)),
}


@pytest.fixture
def dense(make_model: MakeModel) -> Path:
    return make_model("qwen2", "quantized", tie_word_embeddings=False)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_codes_times_scales(form: str, dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS[form])
    found = read(tmp_path)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def test_projections_that_were_left_plain_are_read_so(dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS["blocks"], keeps="v_proj")
    found = read(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_the_program_says_what_the_plain_model_says(dense: Path, tmp_path: Path) -> None:
    weights = write(dense, tmp_path / "codes", *FORMS["blocks"])
    write_plain(dense, tmp_path / "plain", weights)
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)
    prompts = [[7, 8, 9], [1]]
    answers = [
        [
            done.outputs
            for done in LLM(folder, dtype="float32", device="cpu").generate(prompts, params)
        ]
        for folder in (tmp_path / "codes", tmp_path / "plain", dense)
    ]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2], "rounding must show, or nothing was tested"


def test_memory_is_that_of_the_plain_model(dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, *FORMS["blocks"])
    bytes_of = [
        ModelConfig.from_folder(folder).network.num_bytes(2) for folder in (tmp_path, dense)
    ]
    assert bytes_of[0] == bytes_of[1]


def test_scales_of_activations_and_zero_biases_are_let_pass(dense: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        layer = "model.layers.1.mlp.down_proj"
        tensors[f"{layer}.input_scale"] = torch.ones(())
        tensors[f"{layer}.bias"] = torch.zeros(64)
        tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)

    expected = write(dense, tmp_path, *FORMS["rows"], change=change)
    found = read(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_they_are_refused_where_none_are_wanted(dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, *FORMS["blocks"])
    with pytest.raises(ModelError, match=r"quantization none refuses"):
        LLM(tmp_path, dtype="float32", device="cpu", quantization="none")
    LLM(dense, dtype="float32", device="cpu", quantization="none")


LAYER = "model.layers.0.mlp.up_proj"
UP, SCALES = f"{LAYER}.weight", f"{LAYER}.weight_scale_inv"


def with_code(code: int) -> Any:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[UP].view(torch.uint8)[5, 6] = code

    return change


def with_scale(value: float) -> Any:
    return lambda tensors: tensors[SCALES].__setitem__((0, 0), value)


BROKEN: dict[str, tuple[Any, str]] = {
    "a NaN": (with_code(0x7F), "not finite"),
    "another NaN": (with_code(0xFF), "not finite"),
    "a scale that is no number": (with_scale(float("nan")), "not finite"),
    "an endless scale": (with_scale(float("inf")), "not finite"),
    "a scale that is too large": (with_scale(3e38), "not finite"),
    "no scales": (lambda tensors: tensors.pop(SCALES), f"missing: {LAYER}.weight_scale"),
    "too few scales": (
        lambda tensors: tensors.update({SCALES: tensors[SCALES][:1].clone()}),
        "misshapen",
    ),
    "scales in integers": (
        lambda tensors: tensors.update({SCALES: tensors[SCALES].int()}),
        "stored as I32",
    ),
    "codes of another shape": (
        lambda tensors: tensors.update({UP: tensors[UP].T.contiguous()}),
        "misshapen",
    ),
    "codes in E5M2": (
        lambda tensors: tensors.update({UP: tensors[UP].float().to(torch.float8_e5m2)}),
        "weight_scale_inv",
    ),
    "a bias that config.json does not have": (
        lambda tensors: tensors.update({f"{LAYER}.bias": torch.ones(96)}),
        "is not zero",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_gets_one_sentence(case: str, dense: Path, tmp_path: Path) -> None:
    change, words = BROKEN[case]
    write(dense, tmp_path, *FORMS["blocks"], change=change)
    with pytest.raises(ModelError, match=words) as caught:
        read(tmp_path)
    assert LAYER in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"fmt": "e5m2"}, "fmt"),
        ({"weight_block_size": [128]}, "weight_block_size"),
        ({"weight_block_size": [0, 128]}, "weight_block_size"),
        ({"weight_block_size": [128, 2**40]}, "weight_block_size"),
        ({"weight_block_size": [128, "128"]}, "weight_block_size"),
        ({"weight_block_size": 128}, "weight_block_size"),
        ({"quant_method": "eetq"}, "quantized by 'eetq'"),
    ],
)
def test_other_kinds_are_refused_by_name(
    fields: dict[str, Any], name: str, dense: Path, tmp_path: Path
) -> None:
    write(dense, tmp_path, {**BLOCKS, **fields}, blocks(24, 40))
    with pytest.raises(ModelError, match=name):
        ModelConfig.from_folder(tmp_path)
