import dataclasses
from types import SimpleNamespace

import pytest
import torch

from pagedrun.kernels.gpu import chip

DEVICE = torch.device("cuda", 7)
PROPERTIES = SimpleNamespace(
    major=8,
    minor=6,
    multi_processor_count=84,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=101376,
    gcnArchName="gfx942:sramecc+:xnack-",
)


@pytest.fixture(autouse=True)
def fake_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: PROPERTIES)
    chip.chip_of.cache_clear()


def test_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    assert chip.chip_of(DEVICE) == chip.Chip("cuda", 86, 84, 101376)


def test_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert chip.chip_of(DEVICE) == chip.Chip("hip", "gfx942", 84, 49152)


@pytest.mark.parametrize(
    ("arch", "unit", "has_float8"),
    [
        (80, "mma", False),
        (86, "mma", False),
        (87, "mma", False),
        (89, "mma", True),
        (90, "wgmma", True),
        (100, "tcgen05", True),
        (103, "tcgen05", True),
        (110, "tcgen05", True),
        (120, "mma", True),
        (121, "mma", True),
    ],
)
def test_what_a_generation_has(arch: int, unit: str, has_float8: bool) -> None:
    """Not equality with the one chip of it that was looked at."""
    one = chip.Chip("cuda", arch, 84, 101376)
    assert (one.matrix_unit, one.has_float8) == (unit, has_float8)
    assert chip.Chip("hip", "gfx942", 84, 49152).matrix_unit == "mfma"


def test_interpreter_runs_the_tables_of_an_h100() -> None:
    assert chip.chip_of(torch.device("cpu")) == chip.Chip("cuda", 90, 132, 227 * 1024)


def test_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.chip_of(torch.device("cpu")).arch = 80  # type: ignore[misc]


@pytest.mark.gpu
def test_this_gpu_says_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    real = chip.chip_of(torch.device("cuda", 0))
    assert real.num_processors > 0
    assert real.shared_memory >= 48 << 10
