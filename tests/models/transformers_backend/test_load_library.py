"""What is looked at when a library's model is loaded: its weights, its logits, its rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.models.checkpoint.checkpoint import Checkpoint
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.models.transformers_backend.checks import (
    LENGTHS,
    LogitsMismatch,
    ProbeChunk,
    ProbeRun,
    largest_difference,
    rows_depend_on_batch,
)
from pagedrun.paged.models.transformers_backend.config import TransformersConfig
from pagedrun.paged.models.transformers_backend.model import TransformersModel, load_transformers
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.models.transformers_backend.library_models import LIBRARY
from tests.support.engines import load_engine
from tests.support.families import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phi")
    save_tiny(LIBRARY["phi"], folder)
    return folder


def load(folder: Path) -> TransformersModel:
    config = TransformersConfig.from_folder(folder)
    with Checkpoint.open(folder) as checkpoint:
        model = load_transformers(
            config.network, checkpoint, torch.float32, choose_device("cpu"), row_invariant=False
        )
    assert isinstance(model, TransformersModel)
    return model


@pytest.fixture(scope="module")
def model(folder: Path) -> TransformersModel:
    return load(folder)


class MindsTheBatch(TransformersModel):
    """A model whose tokens get other bits the more there are of them."""

    def __init__(self, model: TransformersModel) -> None:
        self.__dict__ |= model.__dict__

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        return super().hidden(batch, cache) * (1 + 1e-6 * len(batch.input_ids))


def test_rows_that_depend_on_their_batch_are_noticed(model: TransformersModel) -> None:
    device, size = choose_device("cpu"), model.network.hidden_size
    assert not rows_depend_on_batch(ProbeRun(model, device, size))
    assert rows_depend_on_batch(ProbeRun(MindsTheBatch(model), device, size))


def test_a_run_warns_of_rows_that_depend_on_their_batch(folder: Path) -> None:
    config = EngineConfig(model=folder, model_impl="transformers", dtype="float32", device="cpu")
    engine, said = load_engine(config), list[str]()
    request = Request(0, (5, 6, 7), SamplingParams(max_tokens=2))
    list(engine.start([request], hooks=RunHooks(warn=said.append)))
    assert said == []
    model = engine.loaded.model
    assert isinstance(model, TransformersModel)
    model.library["rows_depend_on_batch"] = True
    list(engine.start([request], hooks=RunHooks(warn=said.append)))
    [sentence] = said
    assert "another batch or pool may give other answers" in sentence


@pytest.mark.parametrize("wrong", [0.1, float("nan")])
@pytest.mark.parametrize("token", [0, LENGTHS[1] - 1])  # of a prompt, and generated
def test_other_logits_than_the_librarys_are_refused(
    model: TransformersModel, wrong: float, token: int
) -> None:
    trial = ProbeRun(model, choose_device("cpu"), model.network.hidden_size)
    with torch.inference_mode():
        hidden = [
            trial.hidden([ProbeChunk(row, 0, length)])[0] for row, length in enumerate(LENGTHS)
        ]
        expected = [model.head(each).clone() for each in hidden]
        assert largest_difference(trial, expected) < 1e-5
        expected[1][token] += wrong * expected[1].abs().max()
    with pytest.raises(LogitsMismatch, match="differ from those of Transformers alone"):
        largest_difference(trial, expected)


def changed(folder: Path, target: Path, tensors: dict[str, Tensor | None]) -> Path:
    """Copy a folder, with some tensors in place of others; None leaves one out."""
    stored: dict[str, Any] = {**load_file(folder / "model.safetensors"), **tensors}
    save_file(
        {name: each for name, each in stored.items() if each is not None},
        target / "model.safetensors",
    )
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    return target


WEIGHTS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({"model.layers.1.mlp.fc1.weight": None}, "missing: model.layers.1.mlp.fc1.weight"),
    "extra": ({"model.layers.2.mlp.fc1.bias": torch.zeros(4)}, "extra: model.layers.2.mlp.fc1"),
    "misshapen": ({"model.layers.1.mlp.fc1.weight": torch.zeros(8, 8)}, "fc1.weight"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_fit_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    tensors, why = WEIGHTS[name]
    with pytest.raises(ModelError) as caught:
        load(changed(folder, tmp_path, tensors))
    assert why in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_s_own_code_is_never_run(folder: Path, tmp_path: Path) -> None:
    """Named by config.json it is a reason to refuse; lying there alone it is not looked at."""
    trap = "from pathlib import Path\nPath(__file__ + '.ran').touch()\n"
    changed(folder, tmp_path, {})
    for name in ("modeling_phi.py", "configuration_phi.py", "sitecustomize.py"):
        (tmp_path / name).write_text(trap)
    assert load(tmp_path).library["rows_depend_on_batch"] is False
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["auto_map"] = {
        "AutoConfig": "configuration_phi.PhiConfig",
        "AutoModelForCausalLM": "modeling_phi.PhiForCausalLM",
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelError, match="its own code"):
        load(tmp_path)
    assert not list(tmp_path.glob("*.ran"))
