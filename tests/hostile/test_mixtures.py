"""Mixtures of experts whose tensors are not what config.json says: input 32, requirement S12."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun import LLM, ModelError, SamplingParams
from tests.conftest import MakeModel

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], object]
NUM_EXPERTS, INNER, HIDDEN = 8, 32, 64
EXPERTS = "model.layers.1.mlp.experts"
ROUTER = "model.layers.1.mlp.gate.weight"
UP, DOWN = f"{EXPERTS}.3.up_proj.weight", f"{EXPERTS}.3.down_proj.weight"
WEIGHTS = "model.safetensors"


@pytest.fixture
def broken(make_model: MakeModel, tmp_path: Path) -> Path:
    """A copy of a mixture, free to be broken."""
    return Path(shutil.copytree(make_model("qwen3_moe", "hostile"), tmp_path / "broken"))


def put(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Change:
    return lambda tensors: tensors.update({name: torch.ones(shape, dtype=dtype)})


def without(start: str) -> Change:
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(start)]


def stacked(change: Change) -> Change:
    """Change a checkpoint in the other layout: one tensor for all experts of a layer."""

    def rewrite(tensors: Tensors) -> None:
        for layer in range(2):
            name = f"model.layers.{layer}.mlp.experts"
            gate, up, down = (
                torch.stack([tensors.pop(f"{name}.{e}.{part}_proj.weight") for e in range(8)])
                for part in ("gate", "up", "down")
            )
            tensors |= {f"{name}.gate_up_proj": torch.cat([gate, up], 1), f"{name}.down_proj": down}
        change(tensors)

    return rewrite


BROKEN: dict[str, tuple[Change, str]] = {
    "one expert's matrix less": (without(UP), f"missing: {UP}"),
    "one expert less": (without(f"{EXPERTS}.7."), f"missing: {EXPERTS}.7.down_proj.weight, "),
    "a layer without experts": (without(EXPERTS), "and 20 more)"),
    "one expert more": (
        put(f"{EXPERTS}.8.up_proj.weight", INNER, HIDDEN),
        f"extra: {EXPERTS}.8.up_proj.weight",
    ),
    "a matrix that no expert has": (put(f"{EXPERTS}.1.side_proj.weight", 1), "side_proj"),
    "an expert on its side": (put(UP, HIDDEN, INNER), "is [64, 32] and must be [32, 64]"),
    "a narrow expert": (put(DOWN, HIDDEN, INNER - 1), "is [64, 31] and must be [64, 32]"),
    "an expert of no columns": (put(UP, INNER, 0), "is [32, 0] and must be [32, 64]"),
    "an expert that is a number": (put(UP), "is [] and must be [32, 64]"),
    "an expert in int8": (put(UP, INNER, HIDDEN, dtype=torch.int8), f"{UP} is stored as I8"),
    "no router": (without(ROUTER), f"missing: {ROUTER}"),
    "a router to one expert more": (
        put(ROUTER, NUM_EXPERTS + 1, HIDDEN),
        "is [9, 64] and must be [8, 64]",
    ),
    "both layouts": (
        put(f"{EXPERTS}.down_proj", NUM_EXPERTS, HIDDEN, INNER),
        f"extra: {EXPERTS}.down_proj",
    ),
    "half of the stack": (stacked(without(f"{EXPERTS}.down")), f"missing: {EXPERTS}.down_proj"),
    "a low stack": (
        stacked(put(f"{EXPERTS}.down_proj", NUM_EXPERTS - 1, HIDDEN, INNER)),
        "is [7, 64, 32] and must be [8, 64, 32]",
    ),
    "a stack of gates alone": (
        stacked(put(f"{EXPERTS}.gate_up_proj", NUM_EXPERTS, INNER, HIDDEN)),
        "is [8, 32, 64] and must be [8, 64, 64]",
    ),
    "a stack of one": (
        stacked(put(f"{EXPERTS}.down_proj", HIDDEN, INNER)),
        "is [64, 32] and must be [8, 64, 32]",
    ),
}


def rewritten(folder: Path, change: Change) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        LLM(folder, dtype="float32", device="cpu")
    sentence = str(caught.value)
    assert str(folder) in sentence
    assert sentence.count("\n") == 0
    assert len(sentence) < 1000
    return sentence


@pytest.mark.parametrize("name", BROKEN)
def test_32_s12_a_broken_mixture_gets_one_sentence(broken: Path, name: str) -> None:
    change, words = BROKEN[name]
    rewritten(broken, change)
    assert words in refusal(broken)


LIES: dict[str, tuple[dict[str, object], str]] = {
    "a dense layer": ({"mlp_only_layers": [0]}, "missing: model.layers.0.mlp.down_proj.weight"),
    "one expert more": ({"num_experts": 9}, "missing: model.layers.0.mlp.experts.8.down_proj"),
    "wider experts": ({"moe_intermediate_size": 2**22}, "is [32, 64] and must be [4194304, 64]"),
    "one layer more": ({"num_hidden_layers": 3}, "missing: model.layers.2.input_layernorm.weight"),
    "one layer less": ({"num_hidden_layers": 1}, "extra: model.layers.1.input_layernorm.weight"),
}


@pytest.mark.parametrize("name", LIES)
def test_32_s12_a_config_of_another_mixture_gets_one_sentence(broken: Path, name: str) -> None:
    fields, words = LIES[name]
    path = broken / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    assert words in refusal(broken)


@pytest.mark.parametrize("name", [DOWN, ROUTER])
def test_32_weights_that_are_no_numbers_fail_rows_and_not_the_job(broken: Path, name: str) -> None:
    """A NaN is chosen first, wherever it is: no token may get an answer without it."""
    rewritten(broken, lambda tensors: tensors[name].fill_(torch.nan))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    answers = LLM(broken, dtype="float32", device="cpu").generate([[7, 8, 9], [1, 2]], params)
    assert [answer.error and answer.error.code for answer in answers] == ["nan_logits"] * 2
