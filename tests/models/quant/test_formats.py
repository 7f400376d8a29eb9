"""Quantized checkpoints: what their weights are, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.support.four_bit_writers import Nvfp4Writer
from tests.support.low_bit_writers import PackWriter, awq, compressed, float8, gptq, int8
from tests.support.quantized_checkpoints import (
    Change,
    WeightExpansion,
    read,
    write,
    write_plain,
)
from tests.support.quantized_forms import (
    BLOCKS,
    BNB,
    FOUR,
    FP8,
    LAYER,
    MODELOPT,
    NVFP4,
    PACKED,
    TABLES,
)

FORMS = {**PACKED, **FP8, **TABLES}
PROMPTS = [[7, 8, 9], [1]]


@pytest.fixture
def dense(make_model: MakeModel) -> Path:
    return make_model("qwen2", "quantized", tie_word_embeddings=False)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_that_were_rounded(form: str, dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS[form])
    found, plain = read(tmp_path), read(dense)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        close = 2e-7 if form in TABLES else 0
        torch.testing.assert_close(found[name], weight, rtol=close, atol=0)
        if form in TABLES:
            assert (weight - plain[name]).norm() < 0.15 * plain[name].norm(), name


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


def test_projections_that_were_left_plain_are_read_so(dense: Path, tmp_path: Path) -> None:
    expected = write(dense, tmp_path, *FORMS["fp8, blocks"], keeps="v_proj")
    found = read(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("form", ["awq", "gptq", "packed"])
def test_codes_are_read_from_any_row_on(
    form: str, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them are in one word of a file, of neighboring rows in AWQ's."""
    weights: list[PackedWeight] = []

    def kept(self: WeightExpansion, weight: PackedWeight, dtype: torch.dtype) -> Tensor:
        weights.append(weight)
        return torch.zeros(weight.out_features, weight.in_features)

    monkeypatch.setattr(WeightExpansion, "dequantize", kept)
    write(dense, tmp_path, *FORMS[form])
    read(tmp_path)
    for weight in weights:
        assert torch.equal(weight.codes[5:13], weight.codes[:][5:13])
    assert weights


def test_each_part_of_a_product_has_its_part_of_the_bias() -> None:
    """Parts that are held in different ways are products of their own."""
    biases: list[Tensor] = []

    def pack(weight: Any, *given: Any, row_invariant: bool) -> Any:
        biases.append(given[-1])
        sizes = {"in_features": 8, "out_features": len(given[-1]), "num_bytes": 0}
        return SimpleNamespace(is_packed=True, row_invariant=row_invariant, **sizes)

    kernels: Any = SimpleNamespace(pack_linear=pack, pack_quantized=pack)
    source = WeightSource(torch.zeros, torch.float32, torch.device("cpu"), kernels)  # type: ignore[arg-type]
    codes = torch.zeros(2, 8, dtype=torch.int8)
    packed = PackedWeight(codes, 8, GroupScales(torch.ones(2, 1)), 8)
    source.pack_parts([torch.zeros(4, 8), packed, torch.zeros(3, 8)], torch.arange(9.0))
    assert [each.tolist() for each in biases] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]


@pytest.mark.parametrize(
    "form",
    [
        *("awq", "gptq, scattered groups", "packed, asymmetric", "fp8, blocks"),
        *("nvfp4", "nf4, nested"),
    ],
)
def test_the_program_says_what_the_plain_model_says(form: str, dense: Path, tmp_path: Path) -> None:
    write_plain(dense, tmp_path / "plain", write(dense, tmp_path / "codes", *FORMS[form]))
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)
    codes, plain, unrounded = (
        [
            done.outputs
            for done in LLM(folder, dtype="float32", device="cpu", activations="exact").generate(
                PROMPTS, params
            )
        ]
        for folder in (tmp_path / "codes", tmp_path / "plain", dense)
    )
    if form in TABLES:  # products of their weights are rounded in another order
        assert [each.token_ids for (each,) in codes] == [each.token_ids for (each,) in plain]
    else:
        assert codes == plain
    assert codes != unrounded, "rounding must show, or nothing was tested"


def test_memory_is_that_of_the_plain_model(dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, *FORMS["fp8, blocks"])
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

    expected = write(dense, tmp_path, *FORMS["fp8, rows"], change=change)
    found = read(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_they_are_refused_where_none_are_wanted(dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, *FORMS["fp8, blocks"])
    with pytest.raises(ModelError, match=r"quantization none refuses"):
        LLM(tmp_path, dtype="float32", device="cpu", quantization="none")
    LLM(dense, dtype="float32", device="cpu", quantization="none")


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


STATE = "weight.quant_state.bitsandbytes__nf4"
SCALES = "weight_scale_inv"


def replaced(end: str, change: Any) -> Change:
    """Replace a tensor of a layer by what `change` makes of it."""
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


def with_first(value: float) -> Any:
    """Return a change of the first element."""

    def change(each: Tensor) -> Tensor:
        each.view(-1)[0] = value
        return each

    return change


def with_code(code: int) -> Change:
    return replaced(
        "weight", lambda each: with_first(code)(each.view(torch.uint8)).view(each.dtype)
    )


def with_bias(tensors: dict[str, Tensor]) -> None:
    tensors[f"{LAYER}.bias"] = torch.ones(96)


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
    "a scale of modelopt that is no number": (
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
    "a description of another shape": ("nf4", said(shape=[64, 96]), "shape is"),
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
    "a NaN": ("fp8, blocks", with_code(0x7F), "not finite"),
    "another NaN": ("fp8, blocks", with_code(0xFF), "not finite"),
    "a block's scale that is no number": (
        "fp8, blocks",
        replaced(SCALES, with_first(float("nan"))),
        "not finite",
    ),
    "an endless scale": (
        "fp8, blocks",
        replaced(SCALES, with_first(float("inf"))),
        "not finite",
    ),
    "a scale that is too large": ("fp8, blocks", replaced(SCALES, with_first(3e38)), "not finite"),
    "no scales of blocks": ("fp8, blocks", without(SCALES), f"missing: {LAYER}.weight_scale"),
    "too few scales": ("fp8, blocks", replaced(SCALES, lambda each: each[:1]), "misshapen"),
    "scales in integers": ("fp8, blocks", replaced(SCALES, Tensor.int), "stored as I32"),
    "codes of another shape": ("fp8, blocks", replaced("weight", lambda each: each.T), "misshapen"),
    "codes in E5M2": (
        "fp8, blocks",
        replaced("weight", lambda each: each.float().to(torch.float8_e5m2)),
        "weight_scale_inv",
    ),
    "a bias that config.json does not have": ("fp8, blocks", with_bias, "is not zero"),
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
    "blocks of modelopt": ({**MODELOPT, "quant_algo": "FP8_PB_WO"}, "quant_algo"),
    "large groups of modelopt": ({**MODELOPT, "group_size": 32}, "group_size"),
    "words of bitsandbytes": (
        {**BNB, "bnb_4bit_quant_storage": "bfloat16"},
        "bnb_4bit_quant_storage",
    ),
    "large groups of nvfp4": (
        compressed("nvfp4-pack-quantized", {**FOUR, "group_size": 32}),
        "group_size",
    ),
    "nvfp4 of integers": (compressed("nvfp4-pack-quantized", {**FOUR, "type": "int"}), "type"),
    "mxfp4 of eight bits": (
        compressed("mxfp4-pack-quantized", {**FOUR, "num_bits": 8}),
        "num_bits",
    ),
    "e5m2": ({**BLOCKS, "fmt": "e5m2"}, "fmt"),
    **{
        f"blocks of {size}": ({**BLOCKS, "weight_block_size": size}, "weight_block_size")
        for size in ([128], [0, 128], [128, 2**40], [128, "128"], 128)
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_kinds_are_refused_by_name(case: str, dense: Path, tmp_path: Path) -> None:
    quantization, name = REFUSED[case]
    write(dense, tmp_path, quantization, PackWriter())
    with pytest.raises(ModelError, match=f"quantization_config: .*{name} (is|must)") as caught:
        ModelConfig.from_folder(tmp_path)
    assert str(caught.value).isprintable()


def test_an_unknown_method_is_refused(dense: Path, tmp_path: Path) -> None:
    write(dense, tmp_path, {"quant_method": "eetq"}, PackWriter())
    with pytest.raises(ModelError, match="quantized by 'eetq'"):
        ModelConfig.from_folder(tmp_path)
