"""Experts in MXFP4: what their weights are, what the program says with them, what is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.linear import ExpertMatrices, ExpertsSpec
from pagedrun.paged.models.quant.expert_layouts import Mxfp4
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from tests.models.quant.mxfp4 import folders, packed, random_experts, weights_of
from tests.support.engines import load_engine
from tests.support.quantized_checkpoints import plain

__all__ = ["folders"]  # a fixture

EXPERTS = "model.layers.0.mlp.experts"
Tensors = dict[str, Tensor]


def loaded(tensors: Tensors, dtype: torch.dtype, hidden: int, inner: int) -> ExpertMatrices:
    number = len(tensors[f"{EXPERTS}.down_proj_bias"])
    experts = ExpertsSpec(EXPERTS, number, hidden, inner, (Mxfp4(),), Dense(), has_bias=True)
    source = WeightSource(tensors.__getitem__, dtype, torch.device("cpu"), CpuBackend())
    return experts.load(source)


def stored(hidden: int, inner: int, exponents: tuple[int, int]) -> tuple[Tensors, Tensor, Tensor]:
    """Return the tensors of two experts, and what gates with ups and downs they mean."""
    torch.manual_seed(0)
    up_codes, up_scales = random_experts((2, 2 * inner, hidden), exponents)
    codes, scales = random_experts((2, hidden, inner), exponents)
    tensors = {
        f"{EXPERTS}.gate_up_proj_blocks": packed(up_codes),
        f"{EXPERTS}.gate_up_proj_scales": up_scales,
        f"{EXPERTS}.gate_up_proj_bias": torch.randn(2, 2 * inner),
        f"{EXPERTS}.down_proj_blocks": packed(codes),
        f"{EXPERTS}.down_proj_scales": scales,
        f"{EXPERTS}.down_proj_bias": torch.randn(2, hidden),
    }
    return tensors, weights_of(up_codes, up_scales), weights_of(codes, scales)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_code_and_scale_is_exact(dtype: torch.dtype) -> None:
    """Down to the least power, where a number in bfloat16 has no leading one."""
    tensors, gate_up, down = stored(96, 64, (0, 253))
    found = loaded(tensors, dtype, 96, 64)
    gates, ups, downs = (torch.stack(plain(each)) for each in (found.gate, found.up, found.down))
    assert gates.dtype is dtype
    assert torch.equal(gates.double(), gate_up[:, 0::2])
    assert torch.equal(ups.double(), gate_up[:, 1::2])
    assert torch.equal(downs.double(), down)
    bias = tensors[f"{EXPERTS}.gate_up_proj_bias"].to(dtype)
    assert found.gate_up_bias is not None
    assert torch.equal(found.gate_up_bias, torch.cat([bias[:, 0::2], bias[:, 1::2]], dim=1))


def test_weights_are_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, _, _ = stored(96, 64, (100, 150))
    found = loaded(tensors, torch.bfloat16, 96, 64)
    for name, ours in (("gate_up_proj", None), ("down_proj", found.down)):
        blocks, scales = (tensors[f"{EXPERTS}.{name}_{end}"] for end in ("blocks", "scales"))
        theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).mT
        if ours is None:
            assert torch.equal(torch.stack(plain(found.gate)), theirs[:, 0::2])
            assert torch.equal(torch.stack(plain(found.up)), theirs[:, 1::2])
        else:
            assert torch.equal(torch.stack(plain(ours)), theirs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_program_says_what_the_plain_model_says(dtype: str, folders: dict[str, Path]) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)
    prompts = [[7, 8, 9], list(range(60))]
    answers = [
        [each.outputs for each in LLM(folder, dtype=dtype, device="cpu").generate(prompts, params)]
        for folder in folders.values()
    ]
    assert answers[0] == answers[1]


def test_they_take_the_memory_of_plain_ones(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        network = ModelConfig.from_folder(folder).network
        engine = load_engine(EngineConfig(model=folder, dtype="bfloat16", device="cpu"))
        assert engine.loaded.model.num_bytes == network.num_bytes(2)


def test_quantization_none_refuses_them(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="quantiz"):
        LLM(folders["mxfp4"], dtype="float32", device="cpu", quantization="none")


BLOCKS, SCALES = (f"{EXPERTS}.down_proj_{end}" for end in ("blocks", "scales"))


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


HOSTILE: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no scales": (lambda tensors: tensors.pop(SCALES), f"missing: {SCALES}"),
    "no bias": (
        lambda tensors: tensors.pop(f"{EXPERTS}.down_proj_bias"),
        f"missing: {EXPERTS}.down_proj_bias",
    ),
    "too few groups": (changed(BLOCKS, lambda blocks: blocks[:, :, :1].clone()), "misshapen"),
    "too few bytes": (changed(BLOCKS, lambda blocks: blocks[..., :8].clone()), "misshapen"),
    "scales of other experts": (changed(SCALES, lambda scales: scales[:3].clone()), "misshapen"),
    "blocks of floats": (changed(BLOCKS, lambda blocks: blocks.float()), "is stored as F32"),
    "a scale that is no number": (
        changed(SCALES, lambda scales: scales.index_fill(2, torch.tensor([1]), 255)),
        "not finite",
    ),
    "weights beyond all numbers": (
        changed(SCALES, lambda scales: torch.full_like(scales, 254)),
        "not finite",
    ),
    "plain ones too": (
        lambda tensors: tensors.update({f"{EXPERTS}.down_proj": torch.zeros(8, 64, 64)}),
        rf"extra: {EXPERTS}\.down_proj\)",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_checkpoints_are_refused_with_a_sentence(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    change, message = HOSTILE[name]
    shutil.copytree(folders["mxfp4"], tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message) as caught:
        LLM(tmp_path / "model", dtype="float32", device="cpu")
    assert "\n" not in str(caught.value)


def test_rows_that_are_no_whole_groups_are_refused() -> None:
    tensors, _, _ = stored(96, 64, (120, 130))
    with pytest.raises(ModelError, match="groups of 32"):
        loaded(tensors, torch.float32, 80, 64)
