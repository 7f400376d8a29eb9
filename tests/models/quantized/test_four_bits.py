"""Codes of four bits that stand for numbers of a table: what they mean, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.models.quantized.checkpoints import Change, Writer, read, write, write_plain
from tests.models.quantized.eight_bits import blocks, shaped
from tests.models.quantized.few_bits import compressed
from tests.models.quantized.four_bits import BitsAndBytesWriter, Nvfp4Writer, mxfp4, scb

FOUR = {"num_bits": 4, "type": "float", "symmetric": True}
NVFP4 = compressed("nvfp4-pack-quantized", {**FOUR, "strategy": "tensor_group", "group_size": 16})
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FORMS: dict[str, tuple[dict[str, Any], Writer]] = {
    "nvfp4": (NVFP4, Nvfp4Writer()),
    "nvfp4, modelopt": (MODELOPT, Nvfp4Writer(modelopt=True)),
    "fp8, modelopt": (
        {**MODELOPT, "quant_algo": "FP8"},
        shaped(blocks(0, 0, name="weight_scale"), "weight_scale"),
    ),
    "mxfp4": (
        compressed("mxfp4-pack-quantized", {**FOUR, "strategy": "group", "group_size": 32}),
        mxfp4,
    ),
    "nf4": (BNB, BitsAndBytesWriter()),
    "nf4, nested": (BNB, BitsAndBytesWriter(nested=True, size=32)),
    "fp4": (BNB, BitsAndBytesWriter("fp4")),
    # 64 and 32 or 96 rows and columns: a block is of several rows, and the last is smaller.
    "nf4, large blocks": (BNB, BitsAndBytesWriter(size=4096)),
    "bitsandbytes, int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, scb),
}


@pytest.fixture
def dense(make_model: MakeModel) -> Path:
    return make_model("qwen2", "quantized", tie_word_embeddings=False)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_that_were_rounded(form: str, dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS[form])
    found, plain = read(tmp_path), read(dense)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=2e-7, atol=0)
        assert (weight - plain[name]).norm() < 0.15 * plain[name].norm(), name


@pytest.mark.parametrize("form", ["nvfp4", "nf4, nested"])
def test_the_program_says_what_the_plain_model_says(form: str, dense: Path, tmp_path: Path) -> None:
    write_plain(dense, tmp_path / "plain", write(dense, tmp_path / "codes", *FORMS[form]))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    answers = [
        [
            done.outputs[0].token_ids
            for done in LLM(folder, dtype="float32", device="cpu").generate([[7, 8, 9]], params)
        ]
        for folder in (tmp_path / "codes", tmp_path / "plain")
    ]
    assert answers[0] == answers[1]


def test_modelopt_may_describe_it_in_a_file_of_its_own(dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, {}, Nvfp4Writer(modelopt=True))
    described = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    path = tmp_path / "hf_quant_config.json"
    path.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": described}))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read(tmp_path).keys() == expected.keys()
    path.write_text(json.dumps({"quantization": {**described, "quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ModelError, match="quant_algo is 'W4A8_AWQ'"):
        ModelConfig.from_folder(tmp_path)


LAYER = "model.layers.0.mlp.up_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"


def replaced(end: str, change: Any) -> Change:
    name = f"{LAYER}.{end}"
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def without(end: str) -> Change:
    return lambda tensors: tensors.pop(f"{LAYER}.{end}")


def said(**fields: Any) -> Change:
    """Change what bitsandbytes says beside the tensors."""

    def changed(state: Tensor) -> Tensor:
        text = json.dumps({**json.loads(bytes(state.tolist())), **fields})
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    return replaced(STATE, changed)


BROKEN: dict[str, tuple[str, Change, str]] = {
    "no scales": ("nvfp4", without("weight_scale"), r"missing: \S*weight_scale"),
    "no scale of all": ("nvfp4", without("weight_global_scale"), "weight_global_scale"),
    "a scale of all that is nothing": (
        "nvfp4",
        replaced("weight_global_scale", torch.zeros_like),
        "not finite",
    ),
    "scales of floats": ("nvfp4", replaced("weight_scale", lambda each: each.float()), "as F32"),
    "too few codes": ("nvfp4", replaced("weight_packed", lambda each: each[:, 1:]), "misshapen"),
    "an exponent that is no number": (
        "mxfp4",
        replaced("weight_scale", lambda each: torch.full_like(each, 255)),
        "not finite",
    ),
    "a scale that is no number": (
        "nvfp4, modelopt",
        replaced("weight_scale", lambda each: torch.full_like(each, float("nan"))),
        "not finite",
    ),
    "no table": ("nf4", without("weight.quant_map"), r"missing: \S*quant_map"),
    "a table of three": (
        "nf4",
        replaced("weight.quant_map", lambda each: each[:3]),
        "must be .16.",
    ),
    "a table of nothing": (
        "nf4",
        replaced("weight.quant_map", lambda each: each / 0),
        "not finite",
    ),
    "no description": ("nf4", without(STATE), r"missing: \S*bitsandbytes__nf4"),
    "a description that is none": (
        "nf4",
        replaced(STATE, lambda each: each[:9]),
        "is not valid JSON",
    ),
    "a description that is long": (
        "nf4",
        replaced(STATE, lambda each: torch.zeros(2**16, dtype=torch.uint8)),
        "must be .4096.",
    ),
    "another shape": ("nf4", said(shape=[64, 96]), "shape is"),
    "blocks of another size": ("nf4", said(blocksize=128), "blocksize is"),
    "blocks of no size": ("nf4", said(blocksize=0), "blocksize is"),
    "an odd number of blocks": (
        "nf4",
        replaced("weight.absmax", lambda each: each[1:]),
        "misshapen",
    ),
    "nested blocks of another size": (
        "nf4, nested",
        said(nested_blocksize=64),
        "nested_blocksize is",
    ),
    "no nested offset": ("nf4, nested", said(nested_offset=None), "nested_offset is missing"),
    "no nested table": (
        "nf4, nested",
        without("weight.nested_quant_map"),
        r"missing: \S*nested_quant_map",
    ),
    "columns first": (
        "bitsandbytes, int8",
        replaced("weight_format", lambda each: each + 1),
        "weight_format describes",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_gets_one_sentence(case: str, dense: Path, tmp_path: Path) -> None:
    form, change, words = BROKEN[case]
    write(dense, tmp_path, *FORMS[form], change=change)
    with pytest.raises(ModelError, match=words) as caught:
        read(tmp_path)
    assert LAYER in str(caught.value)
    assert str(caught.value).isprintable()


def test_rows_that_are_no_whole_groups_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    def padded(weight: Tensor) -> Any:
        wide = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 16))
        stored, weights = Nvfp4Writer()(wide)
        return stored, weights[:, : weight.shape[1]]

    dense = make_model("qwen2", "quantized-odd", tie_word_embeddings=False, intermediate_size=88)
    write(dense, tmp_path, NVFP4, padded)
    with pytest.raises(ModelError, match="88 weights are not a whole number of groups"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({**MODELOPT, "quant_algo": "FP8_PB_WO"}, "quant_algo"),
        ({**MODELOPT, "group_size": 32}, "group_size"),
        ({**BNB, "bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage"),
        (compressed("nvfp4-pack-quantized", {**FOUR, "group_size": 32}), "group_size"),
        (compressed("nvfp4-pack-quantized", {**FOUR, "type": "int"}), "type"),
        (compressed("mxfp4-pack-quantized", {**FOUR, "num_bits": 8}), "num_bits"),
    ],
)
def test_other_kinds_are_refused_by_name(
    quantization: dict[str, Any], name: str, dense: Path, tmp_path: Path
) -> None:
    write(dense, tmp_path, quantization, Nvfp4Writer())
    with pytest.raises(ModelError, match=f"{name} is"):
        ModelConfig.from_folder(tmp_path)
