"""Quantised mixtures: experts of both layouts, what their weights are, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.paged.execution.device_facts import probe_device
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.support.eight_bit_writers import blocks
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair
from tests.support.quantized_checkpoints import write, write_plain
from tests.support.quantized_forms import EXPERT_FORMS, EXPERTS, experts

# A shared expert that all tokens pass is in qwen2_moe, names of its own in mixtral.
FAMILIES = ("qwen3_moe", "qwen2_moe", "mixtral")


@every_pair(in_turn="family", form=[*EXPERT_FORMS], family=FAMILIES)
def test_experts_are_those_that_were_rounded(
    form: str, family: str, make_model: MakeModel, tmp_path: Path
) -> None:
    dense = make_model(family, "quantized")
    write_plain(dense, tmp_path / "plain", write(dense, tmp_path / "codes", *EXPERT_FORMS[form]))
    found, expected = experts(tmp_path / "codes"), experts(tmp_path / "plain")
    assert len(found) == len(expected) == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(*each) for each in zip(ours, theirs, strict=True))
    assert not torch.equal(found[0][0], experts(dense)[0][0])


@pytest.mark.parametrize(
    ("family", "form"), [("qwen3_moe", "fp8, blocks"), ("mixtral", "awq"), ("qwen2_moe", "gptq")]
)
def test_the_program_says_what_the_plain_model_says(
    family: str, form: str, make_model: MakeModel, tmp_path: Path
) -> None:
    dense = make_model(family, "quantized")
    write_plain(dense, tmp_path / "plain", write(dense, tmp_path / "codes", *EXPERT_FORMS[form]))
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)
    answers = [
        [
            done.outputs
            for done in LLM(folder, dtype="float32", activations="exact").generate(
                [[7, 8, 9], [1]], params
            )
        ]
        for folder in (tmp_path / "codes", tmp_path / "plain")
    ]
    assert answers[0] == answers[1]


@pytest.mark.invariant("same bytes whatever runs beside a row")
def test_they_take_the_memory_that_the_plan_counts(make_model: MakeModel, tmp_path: Path) -> None:
    write(make_model("qwen3_moe", "quantized"), tmp_path, *EXPERT_FORMS["packed"])
    engine = load_engine(EngineConfig(model=tmp_path, dtype="bfloat16", device="cpu"))
    config, header = ModelConfig.from_folder(tmp_path), CheckpointHeader.read(tmp_path)
    planned = PlannedWeights(config, header, "bfloat16", probe_device("cpu", "auto"))
    assert engine.loaded.model.num_bytes == planned.held_bytes


STACK_FP8 = {"quant_method": "fp8", "weight_block_size": [16, 40]}


@pytest.fixture
def stacked(make_model: MakeModel, tmp_path: Path) -> tuple[Path, Path]:
    """FP8 as the hub has it, and as transformers holds it: one tensor for all experts."""
    separate, whole = tmp_path / "separate", tmp_path / "stacked"
    write(make_model("qwen3_moe", "quantized"), separate, STACK_FP8, blocks(16, 40))
    shutil.copytree(separate, whole)
    tensors = load_file(separate / "model.safetensors")
    for name in (f"model.layers.{layer}.mlp.experts" for layer in range(2)):
        for end, ours in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            gate, up, down = (
                [tensors.pop(f"{name}.{expert}.{part}_proj.{end}") for expert in range(8)]
                for part in ("gate", "up", "down")
            )
            both = [torch.cat(each) for each in zip(gate, up, strict=True)]
            tensors[f"{name}.gate_up_proj{ours}"] = torch.stack(both)
            tensors[f"{name}.down_proj{ours}"] = torch.stack(down)
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    return separate, whole


def test_stacked_experts_are_the_separate_ones(stacked: tuple[Path, Path]) -> None:
    expected, found = map(experts, stacked)
    assert len(found) == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(*each) for each in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (None, f"missing: {EXPERTS}.down_proj_scale"),
        (torch.ones(7, 4, 1), r"is \[7, 4, 1\] and must be \[8, 4, 1\]"),
    ],
    ids=["no scales", "scales of fewer experts"],
)
def test_a_stack_with_other_scales_is_refused(
    scales: Tensor | None, words: str, stacked: tuple[Path, Path]
) -> None:
    _, folder = stacked
    change(folder, f"{EXPERTS}.down_proj_scale_inv", scales)
    with pytest.raises(ModelError, match=words):
        LLM(folder, dtype="float32", device="cpu")


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


LIES: dict[str, tuple[str, str, Any, str]] = {
    "no scales of an expert": (
        "fp8, blocks",
        "3.up_proj.weight_scale_inv",
        None,
        f"missing: {EXPERTS}.3.up_proj.weight_scale",
    ),
    "an expert of fewer rows": (
        "packed",
        "3.up_proj.weight_packed",
        torch.ones(31, 8, dtype=torch.int32),
        "is [31, 8] and must be [32, 8]",
    ),
    "too few groups": (
        "awq",
        "0.down_proj.scales",
        torch.ones(2, 64),
        "is [2, 64] and must be [1, 64]",
    ),
    "words of another kind": (
        "gptq",
        "0.down_proj.qweight",
        torch.ones(4, 64),
        "is stored as F32",
    ),
    "a scale that is no number": (
        "fp8, blocks",
        "7.down_proj.weight_scale_inv",
        torch.full((3, 1), torch.nan),
        f"{EXPERTS}.7.down_proj: some of its weights are not finite",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_what_is_broken_gets_one_sentence(name: str, make_model: MakeModel, tmp_path: Path) -> None:
    form, end, tensor, words = LIES[name]
    write(make_model("qwen3_moe", "quantized"), tmp_path, *EXPERT_FORMS[form])
    change(tmp_path, f"{EXPERTS}.{end}", tensor)
    with pytest.raises(ModelError) as caught:
        LLM(tmp_path, dtype="float32", device="cpu")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
