"""Room for the work items of steps to come: what a captured launch of prefix attention reads."""

import torch

from pagedrun.kernels.attention.attention import AttentionShape
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.prefix_attention import (
    items_at_once,
    matrix_heights,
    tile_rows,
)
from pagedrun.kernels.gpu.attention.prefix_work import UNIT_PARTITIONS, PrefixWork


def prefix_room(
    num_rows: int,
    num_partitions: int,
    shape: AttentionShape,
    device: torch.device,
) -> PrefixWork:
    """Return work without items, with room for any groups of so many rows.

    num_partitions: of all rows together. A row has a unit begun besides its whole ones, an item
    covers a unit of a row at least, and a group a partition of each of its rows.
    """
    on = chip.chip_of(device)
    heights = matrix_heights(shape.head_dim, shape.dtype, shape.cache_dtype, on)
    max_slots = num_partitions // UNIT_PARTITIONS + num_rows
    return PrefixWork.allocate(
        max_items=max_slots,
        max_entries=num_partitions,
        max_rows=num_rows,
        max_slots=max_slots,
        tile_rows=tile_rows(num_rows, shape.num_heads // shape.num_kv_heads, heights),
        device=device,
        at_once=items_at_once(shape, on),
    )
