"""The kernel of sm_90 whose warps have two trades: who gets it; whether it is right on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import tile_sweep
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.prefix_attention import (
    matrix_heights,
    prefix_tile,
)
from pagedrun.kernels.gpu.attention.prefix_tile import can_specialise
from pagedrun.kernels.gpu.chip import Chip
from tests.kernels.gpu.specialised_check import with_tiles

BF16 = torch.bfloat16
SM_90 = Chip("cuda", 90, 132, 227 << 10)
CHECK = Path(__file__).with_name("specialised_check.py")
LIMIT_S = 300  # of all that is run on a GPU here, compilation included


@pytest.mark.parametrize(
    ("head_dim", "block_size", "dtype", "cache_dtype", "on", "version", "expected"),
    [
        (128, 64, BF16, BF16, SM_90, "3.9.0", True),
        (64, 128, BF16, BF16, SM_90, "3.6.0", True),
        (128, 64, BF16, BF16, SM_90, "3.5.1", False),
        (128, 64, BF16, BF16, SM_90, "3.10.0", False),
        (128, 64, BF16, BF16, SM_90, "4.0.0", False),
        (256, 64, BF16, BF16, SM_90, "3.9.0", False),
        (96, 64, BF16, BF16, SM_90, "3.9.0", False),
        (128, 32, BF16, BF16, SM_90, "3.9.0", False),
        (128, 96, BF16, BF16, SM_90, "3.9.0", False),
        (128, 64, BF16, torch.int8, SM_90, "3.9.0", False),
        (128, 64, torch.float16, torch.float16, SM_90, "3.9.0", False),
        (128, 64, BF16, BF16, Chip("cuda", 89, 128, 99 << 10), "3.9.0", False),
        (128, 64, BF16, BF16, Chip("cuda", 100, 148, 227 << 10), "3.9.0", False),
        (128, 64, BF16, BF16, Chip("hip", "gfx942", 304, 64 << 10), "3.9.0", False),
    ],
)
def test_who_can_have_it(
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    on: Chip,
    version: str,
    expected: bool,
) -> None:
    assert can_specialise(head_dim, block_size, dtype, cache_dtype, on, version) is expected


@pytest.mark.parametrize("head_dim", [64, 128])
def test_nobody_gets_it_by_the_rules(head_dim: int) -> None:
    for rows in matrix_heights(head_dim, BF16, BF16, SM_90):
        assert not prefix_tile(rows, head_dim, 64, BF16, BF16, SM_90).is_specialised
    other = with_tiles(SM_90, (64, 4, 3), (64, 8, 5))
    assert not prefix_tile(128, head_dim, 64, BF16, BF16, other).is_specialised


def test_a_measured_table_gives_it_where_the_chip_can() -> None:
    entry = ((64, 4, 3, 1), (64, 4, 5, 1))
    on = with_tiles(SM_90, *entry)
    low, high = (prefix_tile(rows, 128, 64, BF16, BF16, on) for rows in (64, 128))
    assert (low.is_specialised, low.rows, low.keys, low.num_stages) == (True, 64, 64, 3)
    assert (high.is_specialised, high.rows, high.keys, high.num_stages) == (True, 128, 64, 5)
    # A table that does not fit the chip: the rule's tile, not one of the same numbers.
    blackwell = Chip("cuda", 100, 148, 227 << 10)
    assert prefix_tile(
        128, 128, 64, BF16, BF16, with_tiles(blackwell, (64, 4, 5, 1))
    ) == prefix_tile(128, 128, 64, BF16, BF16, blackwell)


def test_the_sweep_tries_it_on_its_chip_and_only_when_asked_to() -> None:
    shape = tile_sweep.kernel_shape("qwen3-8b")
    (plain,) = (each for each in tile_sweep.sweeps_of(shape, SM_90) if each.op == "prefix")
    assert all(len(tile) == 3 for candidate in plain.candidates for tile in candidate)
    (sweep,) = tile_sweep.specialised_sweeps(shape, SM_90)
    added = [each for each in sweep.candidates if all(len(tile) == 4 for tile in each)]
    assert sweep.op == "prefix"
    assert added
    for candidate in added:
        tiles = [
            prefix_tile(rows, 128, 64, BF16, BF16, with_tiles(SM_90, *candidate))
            for rows in (64, 128)
        ]
        assert all(tile.is_specialised and tile.num_stages >= 2 for tile in tiles)
        assert len({tile.keys for tile in tiles}) == 1
    assert not tile_sweep.specialised_sweeps(shape, Chip("cuda", 100, 148, 227 << 10))


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    if not can_specialise(128, 64, BF16, BF16, chip.chip_of(torch.device("cuda"))):
        pytest.skip("for sm_90")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, str(CHECK)], env=environment, check=True, timeout=LIMIT_S)
