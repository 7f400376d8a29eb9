"""Causal attention of prompt chunks, as matrix products over partitions of the context.

Chunks are cut into tiles of at most `TILE_ROWS` rows, a row being one (query, head of the group);
tiles of one height form a batch, and a batch walks the partitions in ascending order:
gather keys and values into contiguous float32, multiply, weigh, multiply, merge.

Why a row's bytes depend on nothing but its own context: a partition always enters the products at
its full width, zeros standing for what is beyond the chunk, so the length of every sum is fixed;
oneDNN and MKL give a row the same bits whatever the number of rows, from `MIN_ROWS` on; masked
keys weigh exactly 0; and partitions merge in the order of their positions.

bfloat16 models: the operands are float32 tensors that hold bfloat16 values, multiplied on the
bfloat16 units where there are such (weights are rounded to bfloat16 there), summed and returned in
float32. That took half the time of float32 products.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.exp2 import LOG2_E
from pagedrun.kernels.cpu.jit import spread
from pagedrun.kernels.cpu.matrix_products import multiply_in, padded_rows
from pagedrun.kernels.cpu.prefill_partition import (
    gather,
    merge,
    pack_queries,
    weigh_rows,
    write_rows,
)
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.kernels.partition import PARTITION_TOKENS

TILE_ROWS = 256
BATCH_ROWS = 512
MAX_BATCH_TILES = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive queries of one chunk.

    `first_row` is their place in `q`, `first_position` that in the context, `context_end` the
    position after the chunk's last, `num_rows` the height of the tile, padding included.
    """

    first_row: int
    num_tokens: int
    first_position: int
    context_end: int
    table_row: int
    num_rows: int

    @property
    def end(self) -> int:
        """The position after the tile's last query."""
        return self.first_position + self.num_tokens


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    chunk_starts: Tensor,
    table_rows: Tensor,
    first_positions: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """Attend from chunks of queries over the blocks of their tables; see the reference.

    Raises NotImplementedError for quantised caches.
    """
    if scales is not None:
        raise NotImplementedError("prefill over quantised keys and values on a CPU")
    assert key_cache.is_contiguous(), "a copy would cost too much"
    assert value_cache.is_contiguous(), "a copy would cost too much"
    q, block_tables = q.contiguous(), block_tables.contiguous()
    out = torch.empty_like(q)
    tiles = _cut_tiles(
        chunk_starts.tolist(),
        table_rows.tolist(),
        first_positions.tolist(),
        group=q.shape[1] // key_cache.shape[1],
    )
    with multiply_in(q.dtype):
        for batch in _batches(tiles):
            _attend(q, key_cache, value_cache, block_tables, batch, scale, window, softcap, out)
    return out


def _cut_tiles(
    chunk_starts: list[int], table_rows: list[int], first_positions: list[int], group: int
) -> list[Tile]:
    tile_tokens = max(1, TILE_ROWS // group)
    tiles = []
    for chunk, (table_row, position) in enumerate(zip(table_rows, first_positions, strict=True)):
        first, end = chunk_starts[chunk], chunk_starts[chunk + 1]
        for row in range(first, end, tile_tokens):
            num_tokens = min(tile_tokens, end - row)
            tiles.append(
                Tile(
                    first_row=row,
                    num_tokens=num_tokens,
                    first_position=position + row - first,
                    context_end=position + end - first,
                    table_row=table_row,
                    num_rows=padded_rows(num_tokens * group),
                )
            )
    return tiles


def _batches(tiles: list[Tile]) -> Iterator[list[Tile]]:
    """Yield tiles of one height together: first by length of context, then in the given order."""
    ordered = sorted(
        tiles, key=lambda tile: (tile.num_rows, tile.end // PARTITION_TOKENS, tile.first_row)
    )
    for num_rows, same_height in groupby(ordered, key=lambda tile: tile.num_rows):
        equal = list(same_height)
        size = min(MAX_BATCH_TILES, max(1, BATCH_ROWS // num_rows))
        for start in range(0, len(equal), size):
            yield equal[start : start + size]


def _attend(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    batch: list[Tile],
    scale: float,
    window: int | None,
    softcap: float | None,
    out: Tensor,
) -> None:
    """Write the attention of one batch of tiles to its rows of `out`."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    rows = (num_kv_heads, len(batch), batch[0].num_rows)
    queries, partial, total = (torch.zeros(*rows, head_dim) for _ in range(3))
    scores = torch.empty(*rows, PARTITION_TOKENS)
    context = torch.empty(2, num_kv_heads * len(batch), PARTITION_TOKENS, head_dim)
    part_state, state = np.empty((2, *rows), np.float32), np.zeros((2, *rows), np.float32)
    tables, caches = as_array(block_tables), (as_array(key_cache), as_array(value_cache))

    spread(scores.numel())
    pack_queries(as_array(q), _places(batch), as_array(queries))
    for start in _partition_starts(batch, window):
        sources = _sources(batch, tables, start, block_size)
        groups = num_kv_heads * len(sources)
        keys, values = context[:, :groups]
        gather(*caches, tables, _places(sources), start, as_array(keys), as_array(values))
        torch.bmm(
            queries.view(groups, -1, head_dim),
            keys.transpose(1, 2),
            out=scores.view(groups, -1, PARTITION_TOKENS),
        )
        if softcap is not None:
            scores.mul_(scale / softcap).tanh_()
        weigh_rows(
            as_array(scores),
            _places(batch),
            q.shape[1] // num_kv_heads,
            start,
            window or 0,
            np.float32(scale if softcap is None else softcap) * LOG2_E,
            part_state,
        )
        torch.bmm(
            scores.view(groups, -1, PARTITION_TOKENS),
            values,
            out=partial.view(groups, -1, head_dim),
        )
        merge(as_array(partial), part_state, as_array(total), state)
    write_rows(as_array(total), state, _places(batch), as_array(out))


def _places(tiles: list[Tile]) -> NDArray[np.int64]:
    """Return what the kernels need to know of each tile, in the order of `prefill_partition`."""
    return np.array(
        [(t.first_row, t.num_tokens, t.first_position, t.context_end, t.table_row) for t in tiles]
    )


def _partition_starts(batch: list[Tile], window: int | None) -> range:
    first = min(tile.first_position for tile in batch)
    visible = 0 if window is None else max(0, first - window + 1)
    stop = max(tile.end for tile in batch)
    return range(visible - visible % PARTITION_TOKENS, stop, PARTITION_TOKENS)


def _sources(
    batch: list[Tile], tables: NDArray[np.int32], start: int, block_size: int
) -> list[Tile]:
    """Return the tiles whose keys and values must be gathered for the partition at `start`.

    That is one for all where the partition lies in the same blocks, or in the same chunk, for every
    tile that reaches it; then all their rows enter one product. Otherwise it is the whole batch.
    """
    reaching = [tile for tile in batch if tile.end > start]
    one, others = reaching[0], reaching[1:]
    if all((t.table_row, t.context_end) == (one.table_row, one.context_end) for t in others):
        return [one]
    if any(tile.context_end < start + PARTITION_TOKENS for tile in reaching):
        return batch
    span = slice(start // block_size, -(-(start + PARTITION_TOKENS) // block_size))
    blocks = tables[[tile.table_row for tile in reaching], span]
    return [one] if (blocks == blocks[0]).all() else batch
