"""Families whose mixtures have routers of other kinds, against Transformers."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.kernels.ops import Backend
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.moe import RouterSpec
from pagedrun.paged.models.modules.moe_layer import Router
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.values.errors import ModelError
from tests.models.configs import moe_layers
from tests.models.oracle import MakeOracle
from tests.support.mixture_families import MIXTURES

PROMPTS = [[1, 2, 3], list(range(40))]


def stacked(folder: Path, target: Path) -> Path:
    """Copy a model folder, the experts of a mixture in one tensor for gates and ups, one for downs.

    By the description of the model, which says what the tensors of an expert are called.
    """
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for each in filter(None, moe_layers(ModelConfig.from_folder(folder))):
        experts = each.experts
        names = [parameter.name for parameter in experts.parameters()]
        size = experts.num_experts
        gate, up, down = (
            torch.stack([tensors.pop(name) for name in names[part * size : (part + 1) * size]])
            for part in range(3)
        )
        tensors[f"{experts.name}.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{experts.name}.down_proj"] = down
    save_file(tensors, target / "model.safetensors")
    return target


# Each with other names of the projections.
@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("name", ["glm4_moe", "minimax_m2"])
def test_both_layouts_give_the_same_bytes(
    name: str, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    folder = make_oracle(name, MIXTURES[name]).folder
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=3)
    one, other = (
        LLM(each, dtype="float32").generate(PROMPTS, params)
        for each in (folder, stacked(folder, tmp_path / "stacked"))
    )
    assert [each.outputs for each in one] == [each.outputs for each in other]


GLM = "model.layers.1.mlp"
CORRECTION, ROUTER = f"{GLM}.gate.e_score_correction_bias", f"{GLM}.gate.weight"
EXPERT, DENSE_EXPERT = (
    f"{GLM}.experts.5.up_proj.weight",
    "model.layers.0.mlp.experts.0.up_proj.weight",
)
SHARED = "model.layers.2.mlp.shared_experts.down_proj.weight"
# Tensors put in place of others, None for one that is left out; and what the refusal says.
MISFITS: dict[str, tuple[str, torch.Tensor | None, str]] = {
    "no correction": (CORRECTION, None, f"missing: {CORRECTION})"),
    "a correction of fewer experts": (
        CORRECTION,
        torch.zeros(7),
        f"{CORRECTION} is [7] and must be [8]",
    ),
    "a router of more experts": (
        ROUTER,
        torch.zeros(9, 64),
        f"{ROUTER} is [9, 64] and must be [8, 64]",
    ),
    "no shared expert": (SHARED, None, f"missing: {SHARED})"),
    "an expert too many": (
        EXPERT.replace("5", "8"),
        torch.zeros(32, 64),
        f"extra: {EXPERT.replace('5', '8')})",
    ),
    "an expert too few": (EXPERT, None, f"missing: {EXPERT})"),
    "an expert in a dense layer": (DENSE_EXPERT, torch.zeros(32, 64), f"extra: {DENSE_EXPERT})"),
}


@pytest.mark.parametrize("change", MISFITS)
def test_what_does_not_fit_is_refused_with_a_sentence(
    change: str, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(make_oracle("glm4_moe", MIXTURES["glm4_moe"]).folder, folder)
    name, tensor, message = MISFITS[change]
    tensors: dict[str, torch.Tensor | None] = {
        **load_file(folder / "model.safetensors"),
        name: tensor,
    }
    kept = {name: each for name, each in tensors.items() if each is not None}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        LLM(folder, dtype="float32")
    assert "\n" not in str(caught.value)


def test_layers_that_guess_ahead_are_left_in_the_file(
    make_oracle: MakeOracle, tmp_path: Path
) -> None:
    """As the hub's files have them, behind the last layer; one further on is refused."""
    folder = tmp_path / "model"
    shutil.copytree(make_oracle("glm4_moe", MIXTURES["glm4_moe"]).folder, folder)
    tensors = load_file(folder / "model.safetensors")
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    expected = LLM(folder, dtype="float32").generate(PROMPTS, params)
    tensors["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128)
    save_file(tensors, folder / "model.safetensors")
    found = LLM(folder, dtype="float32").generate(PROMPTS, params)
    assert [each.outputs for each in found] == [each.outputs for each in expected]
    tensors["model.layers.4.eh_proj.weight"] = torch.zeros(64, 128)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"extra: model\.layers\.4\.eh_proj\.weight"):
        LLM(folder, dtype="float32")


@pytest.mark.parametrize("in_float32", [True, False])
def test_a_router_in_float32_is_so_beside_layers_in_bfloat16(in_float32: bool) -> None:
    """Logits that differ by less than bfloat16 shows are told apart, and only there."""
    weight = torch.ones(2, 16) + torch.tensor([[0.0], [1e-4]])
    logits = (Projection("router", 2),)
    linear = LinearSpec(logits, 16, has_bias=False, method=Dense(), keep_precision=True)
    spec = RouterSpec(linear, ExpertChoice(1, Score.SIGMOID), None, in_float32)
    source = WeightSource(lambda name: weight, torch.bfloat16, torch.device("cpu"), Backend())
    routing = Router(spec, source)(torch.ones(3, 16, dtype=torch.bfloat16))
    assert routing.experts.flatten().tolist() == [int(in_float32)] * 3
