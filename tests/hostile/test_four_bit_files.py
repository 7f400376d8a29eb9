"""Codes of four bits and quantised experts are a stranger's too: whatever is in their tensors, they
are refused with a sentence, or their weights are finite numbers."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.support.quantized_checkpoints import read, write
from tests.support.quantized_forms import EXPERT_FORMS, EXPERTS, LAYER, TABLES, experts

Tensors = dict[str, Tensor]
DTYPES = (torch.int8, torch.uint8, torch.int32, torch.float16, torch.float32, torch.float8_e4m3fn)


def random_bits(tensor: Tensor, choose: random.Random) -> Tensor:
    made = torch.tensor(list(choose.randbytes(max(tensor.nbytes, 1))), dtype=torch.uint8)
    return made[: tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)


def other_bytes(tensor: Tensor, choose: random.Random) -> Tensor:
    """Change up to four bytes."""
    changed = tensor.clone().reshape(-1).view(torch.uint8)
    for _ in range(choose.randint(1, 4)):
        changed[choose.randrange(len(changed))] = choose.choice([0, 0x7F, 0xFF, 0x22, 0x7D])
    return changed.view(tensor.dtype).reshape(tensor.shape)


DAMAGES: tuple[Callable[[Tensor, random.Random], Tensor], ...] = (
    random_bits,
    other_bytes,
    lambda tensor, choose: tensor.float().to(choose.choice(DTYPES)),
    lambda tensor, choose: tensor[None],
    lambda tensor, choose: tensor[:1] if tensor.dim() else tensor,
    lambda tensor, choose: tensor.reshape(-1)[:-1],
)


def refused(load: Callable[[], list[Tensor]]) -> bool:
    """Whether a model is refused; its weights are numbers if it is not."""
    try:
        weights = load()
    except ModelError as error:
        sentence = str(error)
        assert sentence.isprintable()
        assert len(sentence) < 1000
        return True
    assert all(weight.isfinite().all() for weight in weights)
    return False


def check_damages(folder: Path, name: str, load: Callable[[], list[Tensor]], seeds: range) -> None:
    """Damage tensors of a layer, all whose names begin with `name`, one or two at a time."""
    given = load_file(folder / "model.safetensors")
    names = sorted(each for each in given if each.startswith(name))
    count = 0
    for seed in seeds:
        choose, tensors = random.Random(seed), dict(given)
        for _ in range(choose.randint(1, 2)):
            damaged = choose.choice(names)
            if choose.randrange(8):
                tensors[damaged] = choose.choice(DAMAGES)(given[damaged], choose).contiguous()
            else:
                tensors.pop(damaged, None)
        save_file(tensors, folder / "model.safetensors")
        count += refused(load)
    assert count > len(seeds) // 3, "most damages must show"


def check_form(form: str, dense: Path, folder: Path, seeds: range) -> None:
    write(dense, folder, *TABLES[form])
    check_damages(folder, LAYER, lambda: list(read(folder).values()), seeds)


def check_experts(form: str, dense: Path, folder: Path, seeds: range) -> None:
    write(dense, folder, *EXPERT_FORMS[form])

    def load() -> list[Tensor]:
        return [each for layer in experts(folder) for each in layer]

    check_damages(folder, f"{EXPERTS}.3.", load, seeds)


@pytest.fixture
def dense(make_model: MakeModel) -> Path:
    return make_model("qwen2", "quantized", tie_word_embeddings=False)


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "nf4, nested", "bitsandbytes, int8"])
def test_damaged_checkpoints(form: str, dense: Path, tmp_path: Path) -> None:
    check_form(form, dense, tmp_path, range(25))


def test_damaged_experts(make_model: MakeModel, tmp_path: Path) -> None:
    check_experts("awq", make_model("qwen3_moe", "quantized"), tmp_path, range(15))


@pytest.mark.long
@pytest.mark.parametrize("form", TABLES)
def test_hundreds_of_damaged_checkpoints(form: str, dense: Path, tmp_path: Path) -> None:
    check_form(form, dense, tmp_path, range(1_000, 1_300))


@pytest.mark.long
@pytest.mark.parametrize("form", EXPERT_FORMS)
def test_hundreds_of_damaged_experts(form: str, make_model: MakeModel, tmp_path: Path) -> None:
    check_experts(form, make_model("qwen3_moe", "quantized"), tmp_path, range(1_000, 1_200))
