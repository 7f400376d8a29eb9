"""Checks the specialised kernel against the reference, and its heights and stages with each other.

Run as a program, it does so on the GPU: a kernel that waits for ever can only be killed with its
process.
"""

from dataclasses import replace
from unittest.mock import patch

import torch

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_attention
from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork
from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.gpu.tile_table import TileTable
from tests.kernels.gpu.prefix_rows import groups_of, nested
from tests.kernels.gpu.prefix_states import SCALE, assert_right, same_states


def with_tiles(on: Chip, *entry: tuple[int, ...]) -> Chip:
    """Return a chip whose table has an entry for heads of 64 and 128, in blocks of 64."""
    names = (f"{dim}-64-bfloat16-bfloat16" for dim in (64, 128))
    return replace(on, tiles=TileTable({"prefix": dict.fromkeys(names, entry)}))


def check_specialised(device: torch.device) -> None:
    """Raise `AssertionError` where a result is wrong, or depends on what it must not."""
    genuine = chip.chip_of(device)
    for head_dim in (64, 128):
        q, context, _, shared = nested(head_dim, 4, 64, torch.bfloat16)
        groups = groups_of(context, shared, 64)
        tensors = (q, context.key_cache, context.value_cache, context.block_tables)
        on_device, keys, values, tables = (each.to(device) for each in tensors)
        for at_once in (0, 1):
            found = []
            for stages, height in ((2, 64), (3, 64), (2, 128), (4, 128), (4, 128)):
                entry = with_tiles(genuine, (64, 4, stages, 1), (64, 4, stages, 1))
                work = PrefixWork.of(groups, height // 4, device, at_once)
                with patch.object(chip, "chip_of", return_value=entry):
                    layer, softmax = KVLayer(keys, values), Softmax(SCALE)
                    found.append(prefix_attention(on_device, layer, tables, work, softmax))
                assert_right(found[-1], q, context, groups)
            assert all(same_states(each, found[0]) for each in found), "other bytes"


if __name__ == "__main__":
    check_specialised(torch.device("cuda"))
