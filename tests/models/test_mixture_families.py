"""Families whose mixtures have routers of other kinds, against Transformers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun import LLM, SamplingParams
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.moe import MoeSpec
from pagedrun.paged.values.errors import ModelError
from tests.models.families import save_tiny
from tests.models.mixture_families import MIXTURES
from tests.models.oracle import LENGTHS, NUM_TOKENS, Oracle, ask, check
from tests.scheduling.admit_all import AdmitAll

PROMPTS = [[1, 2, 3], list(range(40))]


@pytest.fixture(scope="module")
def make_oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    made: dict[str, Oracle] = {}

    def make(name: str) -> Oracle:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = save_tiny(MIXTURES[name], folder)
            model.set_experts_implementation("eager")
            made[name] = ask(model, folder)
        return made[name]

    return make


@pytest.mark.parametrize("name", MIXTURES)
def test_tokens_and_first_logits_are_those_of_transformers(
    name: str, make_oracle: Callable[[str], Oracle]
) -> None:
    oracle = make_oracle(name)
    report = check(oracle, max_num_batched_tokens=64)
    assert report["prefix"]["hit_tokens"] > 0
    network = ModelConfig.from_folder(oracle.folder).network
    tied = network.embedding.num_bytes(4) if network.head is None else 0
    assert report["memory"]["weights"] == network.num_bytes(4) + tied


@pytest.mark.parametrize(("name", "mode"), [("glm4_moe", "swap"), ("minimax_m2", "recompute")])
def test_tokens_are_the_same_when_sequences_give_way(
    name: str, mode: str, make_oracle: Callable[[str], Oracle]
) -> None:
    report = check(
        make_oracle(name),
        RunPolicy(AdmitAll),
        block_size=16,
        num_blocks=-(-(max(LENGTHS) + NUM_TOKENS) // 16) + 2,
        preemption_mode=mode,
        prefix_caching=False,
    )
    assert report["preemptions"][mode] > 0


@pytest.mark.parametrize("name", ["glm4_moe", "ernie4_5_moe"])
def test_a_row_has_the_same_bytes_alone_in_bfloat16(name: str, tmp_path: Path) -> None:
    """With routers in float32 beside layers that are not."""
    save_tiny(MIXTURES[name], tmp_path, torch.bfloat16)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate(LENGTHS)]
    llm = LLM(tmp_path, dtype="bfloat16", device="cpu")
    together = llm.generate(prompts, params)
    network = ModelConfig.from_folder(tmp_path).network
    assert llm.report["memory"]["weights"] >= network.num_bytes(2)
    for index in (0, 5, 12):
        [alone] = llm.generate([prompts[index]], params)
        assert alone.outputs == together[index].outputs


def mixtures(folder: Path) -> list[MoeSpec]:
    layers = ModelConfig.from_folder(folder).network.layers
    ffns = [layer.ffn for layer in layers if isinstance(layer, DecoderLayerSpec)]
    return [each for each in ffns if isinstance(each, MoeSpec)]


def stacked(folder: Path, target: Path) -> Path:
    """Copy a model folder, the experts of a mixture in one tensor for gates and ups, one for downs.

    By the description of the model, which says what the tensors of an expert are called.
    """
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for each in mixtures(folder):
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
@pytest.mark.parametrize("name", ["glm4_moe", "minimax_m2"])
def test_both_layouts_give_the_same_bytes(
    name: str, make_oracle: Callable[[str], Oracle], tmp_path: Path
) -> None:
    folder = make_oracle(name).folder
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=3)
    one, other = (
        LLM(each, dtype="float32").generate(PROMPTS, params)
        for each in (folder, stacked(folder, tmp_path / "stacked"))
    )
    assert [each.outputs for each in one] == [each.outputs for each in other]


def changed(name: str, tensors: dict[str, torch.Tensor]) -> str:
    """Spoil a checkpoint; return what its refusal must say."""
    correction = "model.layers.1.mlp.gate.e_score_correction_bias"
    expert = "model.layers.1.mlp.experts.5.up_proj.weight"
    if name == "no correction":
        del tensors[correction]
        return rf"missing: {correction}\)"
    if name == "a correction of fewer experts":
        tensors[correction] = tensors[correction][:7].clone()
        return rf"{correction} is \[7\] and must be \[8\]"
    if name == "a router of more experts":
        router = "model.layers.1.mlp.gate.weight"
        tensors[router] = torch.zeros(9, 64)
        return rf"{router} is \[9, 64\] and must be \[8, 64\]"
    if name == "no shared expert":
        del tensors["model.layers.2.mlp.shared_experts.down_proj.weight"]
        return r"missing: model\.layers\.2\.mlp\.shared_experts\.down_proj\.weight\)"
    if name == "an expert too many":
        tensors[expert.replace("5", "8")] = tensors[expert].clone()
        return r"extra: model\.layers\.1\.mlp\.experts\.8\.up_proj\.weight\)"
    if name == "an expert too few":
        del tensors[expert]
        return rf"missing: {expert}\)"
    assert name == "an expert in a dense layer"
    tensors["model.layers.0.mlp.experts.0.up_proj.weight"] = tensors[expert].clone()
    return r"extra: model\.layers\.0\.mlp\.experts\.0\.up_proj\.weight\)"


@pytest.mark.parametrize(
    "change",
    [
        "no correction",
        "a correction of fewer experts",
        "a router of more experts",
        "no shared expert",
        "an expert too many",
        "an expert too few",
        "an expert in a dense layer",
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    change: str, make_oracle: Callable[[str], Oracle], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(make_oracle("glm4_moe").folder, folder)
    tensors = load_file(folder / "model.safetensors")
    message = changed(change, tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message) as caught:
        LLM(folder, dtype="float32")
    assert "\n" not in str(caught.value)


def test_layers_that_guess_ahead_are_left_in_the_file(
    make_oracle: Callable[[str], Oracle], tmp_path: Path
) -> None:
    """As the hub's files have them, behind the last layer; one further on is refused."""
    folder = tmp_path / "model"
    shutil.copytree(make_oracle("glm4_moe").folder, folder)
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
