"""A linear method that the package does not know: this file and one registry line are all of it.

It keeps weights as whole numbers from -7 to 7 with a scale for each row, made when they are
read, and multiplies them out when they are used.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.ops import Linear
from pagedrun.paged.models.checkpoint.tensors import NO_TENSORS, Parameter, Role, StoredTensors
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.linear import LinearMethod, LinearSpec
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.models.quant.registry import LINEAR_METHODS
from tests.conftest import MakeModel

PROMPTS = [[7, 8, 9], list(range(5, 60)), [1]]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class RoundedLinear:
    weight: Tensor  # [out_features, in_features] int8
    scale: Tensor  # [out_features, 1] float32
    bias: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "RoundedLinear":
        scale = weight.abs().amax(dim=1, keepdim=True) / 7
        return cls((weight / scale).round().to(torch.int8), scale, bias)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def num_bytes(self) -> int:
        tensors = (self.weight, self.scale, self.bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @property
    def is_packed(self) -> bool:
        return True

    @property
    def row_invariant(self) -> bool:
        return False

    def multiplied_out(self) -> Tensor:
        return self.weight * self.scale

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.multiplied_out(), self.bias)


@dataclass(frozen=True, slots=True)
class Rounded(LinearMethod):
    """Reads what `Dense` reads, and holds a quarter of its bytes."""

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        return Dense().parameters(linear)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        bias = dtype_bytes if linear.has_bias else 0
        return linear.out_features * (linear.in_features + 4 + bias)

    def load(self, linear: LinearSpec, source: WeightSource) -> Linear:
        parameters = self.parameters(linear)
        weight = source.stacked([each for each in parameters if each.role is Role.MATRIX])
        biases = [each for each in parameters if each.role is Role.BIAS]
        return RoundedLinear.of(weight, source.stacked(biases) if biases else None)

    def matrix(self, linear: LinearSpec, source: WeightSource) -> Tensor:
        return RoundedLinear.of(Dense().matrix(linear, source), None).multiplied_out()


@pytest.fixture(params=["llama", "qwen2"])
def dense_folder(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    return make_model(request.param, "linears", tie_word_embeddings=False)


@pytest.fixture
def rounded_folder(dense_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same weights, to be held by the method, which is registered while a test uses it."""
    monkeypatch.setitem(LINEAR_METHODS, "rounded", lambda fields: Rounded())
    folder = tmp_path / "rounded"
    shutil.copytree(dense_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "rounded"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tokens(folder: Path) -> list[tuple[int, ...]]:
    answers = LLM(folder, dtype="float32").generate(PROMPTS, PARAMS)
    return [answer.outputs[0].token_ids for answer in answers]


def weight_bytes(folder: Path) -> int:
    """Return what the report of a run says of its weights."""
    llm = LLM(folder, dtype="float32")
    llm.generate(PROMPTS[:1], PARAMS)
    return int(llm.report["memory"]["weights"])


def test_a_model_computes_with_it(dense_folder: Path, rounded_folder: Path, tmp_path: Path) -> None:
    expected_folder = tmp_path / "expected"
    shutil.copytree(dense_folder, expected_folder)
    tensors = load_file(dense_folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("_proj.weight", "lm_head.weight")):
            tensors[name] = RoundedLinear.of(tensor, None).multiplied_out()
    save_file(tensors, expected_folder / "model.safetensors")

    rounded, expected, dense = map(tokens, (rounded_folder, expected_folder, dense_folder))
    assert rounded == expected
    assert rounded != dense, "rounding must show, or nothing was tested"


@pytest.mark.invariant("same bytes whatever runs beside a row")
def test_its_bytes_are_those_of_plan_and_ledger(dense_folder: Path, rounded_folder: Path) -> None:
    dense, rounded = (
        ModelConfig.from_folder(folder).network for folder in (dense_folder, rounded_folder)
    )
    assert weight_bytes(rounded_folder) == rounded.num_bytes(4)
    assert weight_bytes(dense_folder) == dense.num_bytes(4)
    parts = [dense.head, *(part for layer in dense.layers for part in layer.parts)]
    linears = [part for part in parts if isinstance(part, LinearSpec)]
    saved = sum(linear.out_features * (3 * linear.in_features - 4) for linear in linears)
    assert dense.num_bytes(4) - rounded.num_bytes(4) == saved
