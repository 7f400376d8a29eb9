"""Attention over shared prefixes with warps of two trades, for chips with `wgmma` (sm_90).

One warp copies blocks of keys and values into shared memory by tensor copies, as far ahead as there
are stages; groups of four warps with 64 rows of the query matrix each multiply them. A group weighs
the scores of one block while its product of the block before goes on. What a program does and
leaves is what `attend_units` does and leaves; only the last bits may be others, since the products
are cut into other instructions. A row's bytes do not depend on how many groups a program has.

Compiled and emulated (tests/kernels/gpu/emulated), not run on a GPU yet: it is taken where the
table of measured tiles has it, and nowhere else.
"""

import functools

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.gpu.attention.prefix_partials import UNIT_TOKENS, PrefixPartials
from pagedrun.kernels.gpu.attention.prefix_tile import PrefixTile
from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork
from pagedrun.kernels.gpu.attention.softmax_state import LOG2_E
from pagedrun.kernels.gpu.attention.specialised_kernels import attend_units_specialised
from pagedrun.kernels.gpu.chip import Chip

GROUP_ROWS = 64  # of the query matrix: what four warps multiply by one instruction
# A low program leaves registers and shared memory for a second one on the processor.
REGISTERS_OF_LOW = 128


def attend_specialised(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    work: PrefixWork,
    softmax: Softmax,
    into: PrefixPartials,
    tile: PrefixTile,
    on: Chip,
) -> None:
    """Attend as `prefix_attention` does and leave the states in `into`.

    Boxes hold the addresses of the caches; a captured launch keeps them as they were.
    """
    keys, values, _ = layer
    num_heads, head_dim = q.shape[1:]
    scale, softcap = softmax.scale, softmax.softcap
    num_groups = tile.rows // GROUP_ROWS
    programs_per_processor = 2 if num_groups == 1 else 1
    num_programs = min(
        len(work.items) * layer.num_kv_heads, programs_per_processor * on.num_processors
    )
    attend_units_specialised[(max(1, num_programs),)](
        q, boxes(keys, tile.keys), boxes(values, tile.keys), block_tables,
        work.items, work.num_items, work.rows, work.first_slots,
        into.peaks, into.masses, into.totals,
        scale * LOG2_E if softcap is None else scale, 0.0 if softcap is None else softcap,
        q.stride(0), block_tables.stride(0),
        keys.stride(0) // head_dim, values.stride(0) // head_dim,
        NUM_KV_HEADS=layer.num_kv_heads, GROUP=num_heads // layer.num_kv_heads,
        NUM_GROUPS=num_groups, HEAD_DIM=head_dim, BLOCK_SIZE=layer.block_size, TILE=tile.keys,
        UNIT=UNIT_TOKENS, STAGES=tile.num_stages, HAS_SOFTCAP=softcap is not None,
        MERGES=work.at_once > 0, num_warps=4,
        maxnreg=REGISTERS_OF_LOW if num_groups == 1 else None, enable_fp_fusion=False,
    )  # fmt: skip


def boxes(cache: Tensor, keys: int) -> TensorDescriptor:
    """Return a cache as a matrix of one token and kv head each, read in boxes of `keys` tokens.

    cache: [num_blocks, num_kv_heads, block_size, head_dim], each block in one piece.
    """
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    rows, rest = divmod(cache.stride(0), head_dim)
    assert rest == 0, "blocks must lie a whole number of tokens apart"
    num_rows = (num_blocks - 1) * rows + num_kv_heads * block_size
    assert num_rows < 1 << 31, "places are counted in 32 bits"
    matrix = cache.as_strided((num_rows, head_dim), (head_dim, 1))
    return TensorDescriptor.from_tensor(matrix, [keys, head_dim], _layout(keys, head_dim))


@functools.cache  # each launch asks again, on the host
def _layout(keys: int, head_dim: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([keys, head_dim], gl.bfloat16)
