"""Checkpoints of packed codes: what their weights are, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.models.quantized.checkpoints import Change, read, write, write_plain
from tests.models.quantized.eight_bits import blocks
from tests.models.quantized.few_bits import (
    Form,
    PackWriter,
    awq,
    compressed,
    float8,
    gptq,
    int8,
    pack,
)

SCALE = "weight_scale"
# 64, 32 and 96 rows and columns: groups of 40 leave a smaller one.
FORMS: dict[str, Form] = {
    "awq": awq(32),
    "awq, one group": awq(0),
    "gptq": gptq(4, 32),
    "gptq, second version": gptq(4, 32, "gptq_v2", less_one=False),
    "gptq, wrong label": gptq(4, 32, "gptq", less_one=False),
    "gptq, asymmetric": gptq(4, 32, symmetric=False),
    "gptq, asymmetric, second version": gptq(4, 32, "gptq_v2", symmetric=False, less_one=False),
    "gptq, scattered groups": gptq(4, 32, symmetric=False, shuffled=True),
    "gptq without groups' places": gptq(4, 40, has_groups=False),
    "gptq, one group": gptq(4, 0),
    "gptq, eight bits": gptq(8, 32, symmetric=False),
    "gptq, two bits": gptq(2, 32),
    "packed": pack(4, 32),
    "packed, asymmetric": pack(4, 32, symmetric=False),
    "packed, smaller last group": pack(4, 40, symmetric=False),
    "packed, rows": pack(4, 0),
    "packed, eight bits": pack(8, 32),
    "packed, scattered groups": pack(4, 32, shuffled=True),
    "int8, rows": (int8("channel"), blocks(1, 0, torch.int8, SCALE)),
    "int8, groups": (int8("group", group_size=32), blocks(1, 32, torch.int8, SCALE)),
    "float8, rows": (float8("channel"), blocks(1, 0, name=SCALE)),
    "float8, blocks": (float8("block", block_structure=[24, 40]), blocks(24, 40, name=SCALE)),
}


@pytest.fixture
def dense(make_model: MakeModel) -> Path:
    return make_model("qwen2", "quantized", tie_word_embeddings=False)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_that_were_rounded(form: str, dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS[form])
    found = read(tmp_path)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def test_bfloat16_is_rounded_once(dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS["awq"])
    found = read(tmp_path, torch.bfloat16)
    assert all(torch.equal(found[name], each.bfloat16()) for name, each in expected.items())


def test_two_widths_in_one_checkpoint(dense: Path, tmp_path: Path) -> None:
    wide, narrow = PackWriter(8, 32), PackWriter(4, 32)
    weights = {"type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    config = compressed("pack-quantized", {**weights, "num_bits": 4}, {**weights, "num_bits": 8})

    def writer(weight: Tensor) -> Any:  # down_proj alone has 96 columns
        return (wide if weight.shape[1] == 96 else narrow)(weight)

    expected = write(dense, tmp_path, config, writer)
    found = read(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("form", ["awq", "gptq, scattered groups", "packed, asymmetric"])
def test_the_program_says_what_the_plain_model_says(form: str, dense: Path, tmp_path: Path) -> None:
    write_plain(dense, tmp_path / "plain", write(dense, tmp_path / "codes", *FORMS[form]))
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)
    answers = [
        [
            done.outputs
            for done in LLM(folder, dtype="float32", device="cpu").generate([[7, 8, 9]], params)
        ]
        for folder in (tmp_path / "codes", tmp_path / "plain")
    ]
    assert answers[0] == answers[1]


LAYER = "model.layers.0.mlp.up_proj"


def replaced(end: str, change: Any) -> Change:
    """Replace a tensor of a layer by what `change` makes of it."""
    name = f"{LAYER}.{end}"
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def without(end: str) -> Change:
    return lambda tensors: tensors.pop(f"{LAYER}.{end}")


BROKEN: dict[str, tuple[str, Change, str]] = {
    "a group past the end": ("gptq", replaced("g_idx", lambda each: each + 1), "groups"),
    "a group before the first": ("gptq", replaced("g_idx", lambda each: each - 1), "groups"),
    "a group far away": (
        "packed, scattered groups",
        replaced("weight_g_idx", lambda each: each * 0 + 2**31 - 1),
        "groups",
    ),
    "zero points of no version": ("gptq", replaced("qzeros", lambda each: each + 1), "symmetric"),
    "a scale that is no number": (
        "awq",
        replaced("scales", lambda each: each / 0),
        "not finite",
    ),
    "no zero points": ("awq", without("qzeros"), r"missing: \S*qzeros"),
    "words of 64 bits": ("awq", replaced("qweight", lambda each: each.long()), "stored as I64"),
    "too few words": ("gptq", replaced("qweight", lambda each: each[1:]), "misshapen"),
    "too many groups": (
        "packed",
        replaced("weight_scale", lambda each: torch.cat([each, each], 1)),
        "misshapen",
    ),
    "another shape": (
        "packed",
        replaced("weight_shape", lambda each: each * 2),
        "weight_shape is not",
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


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "awq for another kernel": (awq(32, version="gemv_fast")[0], "version"),
    "awq without zero points": (awq(32, zero_point=False)[0], "zero_point"),
    "awq of eight bits": (awq(32, bits=8)[0], "bits"),
    "groups of nothing": (awq(-2)[0], "group_size"),
    "gptq of three bits": (gptq(3, 32)[0], "bits"),
    "gptq of marlin": (gptq(4, 32, "marlin")[0], "checkpoint_format"),
    "gptq with exceptions": ({**gptq(4, 32)[0], "dynamic": {"-:.*": {}}}, "dynamic"),
    "sparse": (
        compressed("int-quantized", {}, sparsity_config={"format": "sparse-24-bitmask"}),
        "sparsity_config: format",
    ),
    "transformed": (
        compressed("int-quantized", {}, transform_config={"config_groups": {"u": {}}}),
        "transform_config",
    ),
    "not compressed": (
        compressed("int-quantized", {}, quantization_status="frozen"),
        "quantization_status",
    ),
    "no groups": (compressed("int-quantized"), "config_groups"),
    "a hundred groups": (compressed("int-quantized", *[{}] * 100), "config_groups"),
    "eight bits of a microscaling format": (
        compressed("mxfp8-quantized", {"num_bits": 8, "type": "float"}),
        "format",
    ),
    "a wrong type": (compressed("float-quantized", {"num_bits": 8, "type": "int"}), "type"),
    "asymmetric int8": (int8("channel", symmetric=False), "symmetric"),
    "an odd strategy": (int8("tensor_group"), "strategy"),
    "blocks of no size": (float8("block"), "block_structure"),
    "three bits": (
        compressed(
            "pack-quantized",
            {"num_bits": 3, "type": "int", "strategy": "group", "group_size": 32},
        ),
        "num_bits",
    ),
    "groups in words": (
        compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "tensor"}),
        "strategy",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_kinds_are_refused_by_name(case: str, dense: Path, tmp_path: Path) -> None:
    quantization, name = REFUSED[case]
    write(dense, tmp_path, quantization, PackWriter())
    with pytest.raises(ModelError, match=f"quantization_config: .*{name} (is|must)") as caught:
        ModelConfig.from_folder(tmp_path)
    assert str(caught.value).isprintable()
