"""Attention over shared prefixes: a unit of keys is read once, for all rows that share it.

The rows of a group times the query heads of a kv head are one matrix, the keys of a unit another,
with nothing masked between them. A program takes one item of `PrefixWork` for one kv head and
writes the state of each row over its units; `decode_attention` merges a row's states, in ascending
order. No state depends on the other rows of a tile, nor on how many they are.

`GpuAttention` makes the work items of a step, once for all layers; a captured launch reads them in
the memory that `prefix_room` reserves.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.attention import AttentionOps, AttentionShape, PreparedAttention
from pagedrun.kernels.attention_inputs import AttentionInputs, KVLayer, PrefixGroups, Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.attend_tile import (
    LOG2_E,
    AttentionTile,
    attend_tile,
    can_specialize,
    empty_state,
    merge_states,
    readable,
)
from pagedrun.kernels.gpu.attention.prefix_work import (
    UNIT_PARTITIONS,
    UNIT_TOKENS,
    PrefixPartials,
    PrefixWork,
)
from pagedrun.kernels.gpu.chip import Chip

# Programs for each processor: those that find no item left end at once.
PROGRAMS_PER_PROCESSOR = 2


def prefix_tile(
    rows: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    on: Chip,
) -> AttentionTile:
    """Return the tile of `rows` matrix rows, one of `matrix_heights`.

    A chip has several heights only where they give a row the same bytes: by the same instruction,
    the same keys at a time, and all warps side by side along the rows, so that no sum over keys
    crosses them. That was read off the layouts Triton chooses (sm_90, gfx942); a GPU must confirm.
    """
    is_large, is_quantized = head_dim > 128, cache_dtype.itemsize == 1
    if head_dim > 256 and on.backend == "hip":
        return AttentionTile(rows, 16, 4, 1)
    if dtype is torch.float32:  # no tensor cores: registers hold what is multiplied
        return AttentionTile(rows, 16 if is_large else 32, 8, 2)
    if on.backend == "hip":
        return AttentionTile(rows, 32 if is_large or is_quantized else 64, rows // 32, 1)
    if is_large:
        return AttentionTile(rows, 32, 4 if head_dim <= 256 else 8, 2)
    if on.matrix_unit == "mma":  # with 99 KB, two programs fit on a processor so
        is_small = on.shared_memory < 128 << 10
        return AttentionTile(rows, 32 if is_quantized or is_small else 64, rows // 16, 2)
    if rows == 64:  # leaves room for a second program on the processor
        return AttentionTile(rows, 64, 4, 3 if block_size >= 64 else 2)
    return AttentionTile(rows, 64, rows // 16, 5)


def is_specialized(height: int, shape: AttentionShape, on: Chip) -> bool:
    """Return whether query matrices of a height are multiplied by specialized warps."""
    return height == 128 and can_specialize(
        shape.head_dim, shape.block_size, shape.dtype, shape.cache_dtype, on
    )


def matrix_heights(
    head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, on: Chip
) -> tuple[int, ...]:
    """Return the heights of query matrices that a chip's kernels have, ascending."""
    if head_dim > 256:  # what registers hold, and shared memory of 99 KB
        return (16,) if dtype is torch.float32 else (32,)
    if dtype is torch.float32:
        return (32,)
    is_quantized, unit = cache_dtype.itemsize == 1, on.matrix_unit
    if head_dim > 128:
        return (32,) if unit in ("tcgen05", "mma") else (64,)
    # Where single warps multiply, Triton lays those of a low matrix along the keys, and sums across
    # them in another order for each height.
    if unit == "mma" or (unit == "mfma" and is_quantized):
        return (64,)
    # 64 rows are the least that a group of warps multiplies, and what narrower instructions sum up
    # need not have the same last bit. Of tensor memory that holds for 64 rows too.
    return (128,) if unit == "tcgen05" else (64, 128)


def matrix_height(num_rows: int, shape: AttentionShape, on: Chip) -> int:
    """Return the lowest of the `matrix_heights` that holds so many rows, else the highest."""
    heights = matrix_heights(shape.head_dim, shape.dtype, shape.cache_dtype, on)
    return next((each for each in heights if num_rows <= each), heights[-1])


def tile_rows(num_rows: int, shape: AttentionShape, on: Chip) -> int:
    """Return the rows of a tile, each with the query heads of a kv head, for such large groups."""
    group = shape.num_heads // shape.num_kv_heads
    return max(1, matrix_height(num_rows * group, shape, on) // group)


def prefix_work(groups: PrefixGroups, shape: AttentionShape, device: torch.device) -> PrefixWork:
    """Return the work of groups (tensors on the host), in memory of its size."""
    on = chip.chip_of(device)
    largest = int(groups.row_starts.diff().max()) if len(groups.rows) else 0
    num_rows = tile_rows(largest, shape, on)
    return PrefixWork.of(groups, num_rows, device, items_at_once(num_rows, shape, on))


def items_at_once(num_rows: int, shape: AttentionShape, on: Chip) -> int:
    """Return the number of items of `num_rows` rows processed at the same time.

    0: items have a single unit.

    There registers do not hold a unit's state and the one that it is merged into,
    beside the block numbers of tiles that lie in several blocks, or masks of rows without a query.
    """
    group = shape.num_heads // shape.num_kv_heads
    is_even = group & (group - 1) == 0 and shape.block_size >= 64
    is_narrow = shape.head_dim <= 128 and shape.dtype is not torch.float32
    holds_both = on.matrix_unit == "wgmma" and shape.cache_dtype.itemsize > 1
    if not (is_narrow and is_even and holds_both):
        return 0
    height = matrix_height(num_rows * group, shape, on)
    has_one = is_specialized(height, shape, on)
    programs = on.num_processors * (1 if has_one else PROGRAMS_PER_PROCESSOR)
    return max(1, programs // shape.num_kv_heads)


def prefix_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    groups: PrefixWork,
    softmax: Softmax,
) -> PrefixPartials:
    """Attend from each row over the units of its prefix; see the reference.

    `groups` are work items on the device, so that the launch can be captured.
    """
    assert q[:1].is_contiguous(), "heads of a row must lie side by side"
    keys, values, scales = layer
    assert keys[:1].is_contiguous() and values[:1].is_contiguous()
    assert softmax.scale > 0, "the largest score must stay the largest"
    on = chip.chip_of(q.device)
    scale, softcap = softmax.scale, softmax.softcap
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = layer.num_kv_heads, layer.block_size
    group = num_heads // num_kv_heads
    shape = AttentionShape(num_heads, num_kv_heads, head_dim, q.dtype, keys.dtype, block_size)
    height = matrix_height(groups.tile_rows * group, shape, on)
    max_scores, sum_exps, accs = (
        torch.empty(groups.max_slots, num_heads, *rest, dtype=torch.float32, device=q.device)
        for rest in ((), (), (head_dim,))
    )
    of_rows = (groups.first_slots, groups.num_states, groups.num_partitions)
    partials = PrefixPartials(max_scores, sum_exps, accs, *of_rows)
    if is_specialized(height, shape, on):
        # Imported where it is used: other versions of Triton may lack what it imports.
        from pagedrun.kernels.gpu.attention.specialized_prefix import attend_units_specialized

        attend_units_specialized(q, layer, block_tables, groups, softmax, partials, on)
        return partials
    tile = prefix_tile(height, head_dim, block_size, q.dtype, keys.dtype, on)
    quantized = (None, None) if scales is None else (scales.keys, scales.values)
    num_programs = min(len(groups.items) * num_kv_heads, PROGRAMS_PER_PROCESSOR * on.num_processors)
    attend_units[(max(1, num_programs),)](
        q, readable(keys, on), readable(values, on), *quantized, block_tables,
        groups.items, groups.num_items, groups.rows, groups.first_slots, max_scores, sum_exps, accs,
        scale * LOG2_E if softcap is None else scale, softcap,
        q.stride(0), block_tables.stride(0), keys.stride(0), values.stride(0),
        None if scales is None else scales.keys.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, NUM_ROWS=tile.rows, HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(head_dim), BLOCK_SIZE=block_size, TILE=tile.keys,
        UNIT=UNIT_TOKENS, HAS_SOFTCAP=softcap is not None, MERGES=groups.at_once > 0,
        num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=False,
    )  # fmt: skip
    return partials


@triton.jit(do_not_specialize=["table_stride"])  # tables grow as a run goes on
def attend_units(
    q,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    block_tables,
    items,
    num_items,
    rows,
    first_slots,
    max_scores,
    sum_exps,
    accs,
    scale,
    softcap,
    q_stride,
    table_stride,
    key_stride,
    value_stride,
    scale_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MERGES: tl.constexpr,
):
    """Attend over each n-th pair of an item and a kv head, for a grid of n programs.

    The kv heads of an item are processed consecutively, as stored in a block. With MERGES an item
    may have several units, whose states merge as decode attention would merge them.
    """
    matrix_rows, columns = tl.arange(0, NUM_ROWS), tl.arange(0, WIDTH)
    end = tl.load(num_items) * NUM_KV_HEADS
    for pair in range(tl.program_id(0), end, tl.num_programs(0)):
        kv_head, item = pair % NUM_KV_HEADS, items + pair // NUM_KV_HEADS * 6
        table = block_tables + tl.load(item).to(tl.int64) * table_stride
        unit, num_tokens = tl.load(item + 1), tl.load(item + 2)
        valid = matrix_rows < tl.load(item + 4) * GROUP
        entries = rows + tl.load(item + 3) + matrix_rows // GROUP
        row = tl.load(entries, mask=valid, other=0).to(tl.int64)
        head = kv_head * GROUP + matrix_rows % GROUP
        inside = valid[:, None] & (columns < HEAD_DIM)[None, :]
        elements = (row * q_stride + head * HEAD_DIM)[:, None] + columns[None, :]
        query = tl.load(q + elements, mask=inside, other=0.0)
        max_score, sum_exp, acc = empty_state(NUM_ROWS, WIDTH)
        first_tile = unit * (UNIT // TILE)
        if MERGES:
            for begin in tl.range(0, num_tokens, UNIT):
                part_max_score, part_sum_exp, part_acc = empty_state(NUM_ROWS, WIDTH)
                of_unit = first_tile + begin // TILE
                end_tile = of_unit + tl.minimum(num_tokens - begin, UNIT) // TILE
                for tile in tl.range(of_unit, end_tile):
                    part_max_score, part_sum_exp, part_acc = attend_tile(
                        query, key_cache, value_cache, key_scales, value_scales, table,
                        tile * TILE, 0, 0, kv_head, scale, softcap,
                        key_stride, value_stride, scale_stride,
                        part_max_score, part_sum_exp, part_acc,
                        HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, MASKED=False,
                        EVICT="evict_last",
                    )  # fmt: skip
                max_score, sum_exp, acc = merge_states(
                    max_score, sum_exp, acc, part_max_score, part_sum_exp, part_acc
                )
        else:
            for tile in tl.range(first_tile, first_tile + num_tokens // TILE):
                max_score, sum_exp, acc = attend_tile(
                    query, key_cache, value_cache, key_scales, value_scales, table,
                    tile * TILE, 0, 0, kv_head, scale, softcap,
                    key_stride, value_stride, scale_stride,
                    max_score, sum_exp, acc,
                    HEAD_DIM, WIDTH, BLOCK_SIZE, TILE, HAS_SOFTCAP, MASKED=False,
                    EVICT="evict_last",
                )  # fmt: skip
        slot = tl.load(first_slots + row, mask=valid, other=0).to(tl.int64) + tl.load(item + 5)
        states = slot * (NUM_KV_HEADS * GROUP) + head
        tl.store(max_scores + states, max_score, mask=valid)
        tl.store(sum_exps + states, sum_exp, mask=valid)
        tl.store(accs + states[:, None] * HEAD_DIM + columns[None, :], acc, mask=inside)


class GpuAttention(PreparedAttention[PrefixWork, PrefixPartials]):
    """Attention over the inputs of a step, with work items for all layers."""

    __slots__ = ()

    @classmethod
    def of(
        cls,
        inputs: AttentionInputs,
        ops: AttentionOps[PrefixWork, PrefixPartials],
        shape: AttentionShape,
        room: int,
    ) -> "GpuAttention":
        """Return attention over the inputs, with room for groups to come; see `Backend.prepare`."""
        rows, device = inputs.decode, inputs.block_tables.device
        work = None
        if rows is not None and room:
            work = prefix_room(len(rows.context_lens), room, shape, device)
            if rows.groups is not None:
                work.write(rows.groups)
        elif rows is not None and rows.groups is not None:
            work = prefix_work(rows.groups, shape, device)
        return cls(ops, PrefixPartials, inputs, work)

    def regroup(self, groups: PrefixGroups) -> None:
        """Replace the work items in stream order, in their memory."""
        assert self.work is not None, "prepared without room"
        self.work.write(groups)


def prefix_room(
    num_rows: int,
    num_partitions: int,
    shape: AttentionShape,
    device: torch.device,
) -> PrefixWork:
    """Return work without items, with room for any groups of `num_rows` rows.

    num_partitions: of all rows together. A row has a unit begun besides its whole ones, an item
    covers a unit of a row at least, and a group a partition of each of its rows.
    """
    on = chip.chip_of(device)
    rows = tile_rows(num_rows, shape, on)
    max_slots = num_partitions // UNIT_PARTITIONS + num_rows
    return PrefixWork.allocate(
        max_items=max_slots,
        max_entries=num_partitions,
        max_rows=num_rows,
        max_slots=max_slots,
        tile_rows=rows,
        device=device,
        at_once=items_at_once(rows, shape, on),
    )
