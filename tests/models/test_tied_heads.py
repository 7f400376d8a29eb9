"""A head beside the embedding that config.json ties it to: read as Transformers reads it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun.paged.execution.device_facts import probe_device
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from tests.models.oracle import check, oracle_of
from tests.support.engines import load_engine
from tests.support.every_pair import long_except
from tests.support.families import RECURRENT, TINY, save_tiny

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LENGTHS = (1, 33, 70)
Change = Callable[[dict[str, torch.Tensor]], None]


def different(tensors: dict[str, torch.Tensor]) -> None:
    """As the `modules_to_save` of an adapter, once merged."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(tensors[TABLE].shape, generator=generator)
    tensors[HEAD] = tensors[TABLE] + noise * tensors[TABLE].std()


def last_bit(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors[TABLE].clone()
    tensors[HEAD][-1, -1] += 1e-3


def equal(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors[TABLE].clone()


def head_alone(tensors: dict[str, torch.Tensor]) -> None:
    """As `safetensors.torch.save_model` keeps the first of two shared names."""
    tensors[HEAD] = tensors.pop(TABLE)


def save(folder: Path, family: str, change: Change) -> None:
    """Save a tied model of a family, and change its tensors."""
    tiny = {**TINY, **RECURRENT}[family]
    save_tiny(replace(tiny, fields={**tiny.fields, "tie_word_embeddings": True}), folder)
    change_tensors(folder, change)


def change_tensors(folder: Path, change: Change) -> None:
    tensors = load_file(folder / SINGLE)
    assert TABLE in tensors
    assert HEAD not in tensors
    change(tensors)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def theirs(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def network_of(folder: Path) -> DecoderSpec:
    return ModelConfig.from_folder(folder).network


@pytest.mark.parametrize("family", long_except([*TINY, *RECURRENT], ("gemma3", "lfm2")))
@pytest.mark.parametrize("change", [different, pytest.param(head_alone, marks=pytest.mark.long)])
def test_answers_are_those_of_transformers(tmp_path: Path, family: str, change: Change) -> None:
    save(tmp_path, family, change)
    if family == "lfm2":
        change_config(tmp_path, tie_embedding=True)  # the older name has precedence
    check(oracle_of(theirs(tmp_path), tmp_path, LENGTHS), min_distinct=2)


def test_a_table_under_the_name_of_the_head_alone(changed: Callable[[Change], Path]) -> None:
    folder = changed(head_alone)
    check(oracle_of(theirs(folder), folder, LENGTHS), min_distinct=2)


def test_code_of_transformers_keeps_both(changed: Callable[[Change], Path]) -> None:
    folder = changed(different)
    check(oracle_of(theirs(folder), folder, LENGTHS), min_distinct=2, model_impl="transformers")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tied")
    save(folder, "granite", lambda tensors: None)
    return folder


@pytest.fixture
def changed(tied: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """Return a copy of a tied model with other tensors."""

    def make(change: Change) -> Path:
        folder = tmp_path / change.__name__
        shutil.copytree(tied, folder)
        change_tensors(folder, change)
        return folder

    return make


def test_equal_heads_are_shared(tied: Path, changed: Callable[[Change], Path]) -> None:
    assert network_of(tied).ties_head
    assert network_of(changed(equal)).ties_head
    assert not network_of(changed(last_bit)).ties_head


def test_heads_in_shards_are_compared(changed: Callable[[Change], Path]) -> None:
    for change, is_tied in ((equal, True), (last_bit, False)):
        folder = changed(change)
        tensors = load_file(folder / SINGLE)
        (folder / SINGLE).unlink()
        shards = {"a.safetensors": [HEAD], "b.safetensors": sorted(tensors.keys() - {HEAD})}
        for name, inside in shards.items():
            save_file({each: tensors[each] for each in inside}, folder / name)
        assert network_of(folder).ties_head is is_tied  # every file, without an index
        index = {each: name for name, inside in shards.items() for each in inside}
        (folder / INDEX).write_text(json.dumps({"weight_map": index}))
        assert network_of(folder).ties_head is is_tied


@pytest.mark.invariant("same bytes whatever runs beside a row")
def test_planned_bytes_are_those_of_the_loaded_model(changed: Callable[[Change], Path]) -> None:
    counts = []
    for change in (equal, different, head_alone):
        folder = changed(change)
        model, header = ModelConfig.from_folder(folder), CheckpointHeader.read(folder)
        planned = PlannedWeights(model, header, "float32", probe_device("cpu", "auto"))
        engine = load_engine(EngineConfig(model=folder, dtype="float32", device="cpu"))
        assert planned.held_bytes == engine.loaded.model.num_bytes
        counts.append(model.network.num_weights)
    shared, own, alone = counts
    assert (shared, own) == (alone, shared + 320 * 64)


def test_a_head_of_another_shape_is_refused(changed: Callable[[Change], Path]) -> None:
    def larger(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = torch.zeros(330, 64)

    with pytest.raises(ModelError, match=r"misshapen: lm_head\.weight"):
        load_engine(EngineConfig(model=changed(larger), dtype="float32", device="cpu"))


def test_a_head_in_eight_bits_comes_from_its_own_tensor(
    changed: Callable[[Change], Path],
) -> None:
    def lots(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = torch.zeros_like(tensors[TABLE])

    held = ModelConfig.from_folder(changed(lots)).held_as("int8", Path())
    assert held.network.head is not None
    assert held.network.head.parts[0].name == "lm_head"
