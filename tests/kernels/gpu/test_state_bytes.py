"""The states that attention's launches leave take what the budget of a run reckons with."""

import pytest
import torch

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.gpu.attention.decode_attention import (
    MAX_SINGLE_PASS_DIM,
    max_row_partitions,
)
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_room
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.models.network import AttentionHeads
from pagedrun.paged.planning.sizing import (
    FEW_PROGRAMS,
    SINGLE_PASS_DIM,
    state_bytes,
)
from tests.kernels.gpu.ahead_of_time import CHIPS


@pytest.mark.parametrize("window", [None, 700, 5000])
@pytest.mark.parametrize("head_dim", [64, 128, 512])
@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 2048), (8, 4096), (64, 32768)])
def test_what_is_reckoned(
    num_rows: int, num_tokens: int, head_dim: int, window: int | None
) -> None:
    shape = AttentionShape(16, 8, head_dim, torch.bfloat16, torch.bfloat16, 64)
    partitions = num_rows * num_tokens // PARTITION_TOKENS
    together = 0
    if window is None:
        together = prefix_room(num_rows, partitions, shape, torch.device("cpu")).max_slots
    alone = num_rows * max_row_partitions(num_tokens, window)
    heads = AttentionHeads(16, 8, head_dim, window)
    expected = (together + alone) * 16 * (head_dim + 2) * 4
    assert state_bytes(heads, num_rows, num_tokens) == expected


def test_which_rows_are_split_on_any_chip() -> None:
    most = max(chip.num_processors for chip in CHIPS.values())
    assert 2 * most <= FEW_PROGRAMS
    assert SINGLE_PASS_DIM == MAX_SINGLE_PASS_DIM
