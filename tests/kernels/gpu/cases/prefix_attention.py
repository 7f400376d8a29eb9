"""Head sizes and caches that models have, with each height of the query matrix of the chip."""

import functools

import torch

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import KVLayer, KVScales, Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.prefix_attention import (
    items_at_once,
    matrix_heights,
    prefix_attention,
)
from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork
from tests.kernels.gpu.ahead_of_time import Case

KV_HEADS = 8


def launch(
    head_dim: int,
    group: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    softcap: float | None,
) -> None:
    q = torch.ones(2, KV_HEADS * group, head_dim, dtype=dtype)
    cache = torch.ones(3, KV_HEADS, block_size, head_dim).to(cache_dtype)
    of_cache = torch.ones(3, KV_HEADS, block_size)
    scales = None if cache_dtype is dtype else KVScales(of_cache, of_cache)
    tables = torch.zeros(2, 64, dtype=torch.int32)
    on = chip.chip_of(q.device)
    shape = AttentionShape(KV_HEADS * group, KV_HEADS, head_dim, dtype, cache_dtype, block_size)
    for height in matrix_heights(head_dim, dtype, cache_dtype, on):
        num_rows = max(1, height // group)
        work = PrefixWork.allocate(
            max_items=16,
            max_entries=16,
            max_rows=16,
            max_slots=16,
            tile_rows=num_rows,
            device=q.device,
            at_once=items_at_once(num_rows, shape, on),
        )
        prefix_attention(q, KVLayer(cache, cache, scales), tables, work, Softmax(0.1, softcap))


def case(
    head_dim: int,
    group: int = 4,
    block_size: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    softcap: float | None = None,
    short: tuple[str, ...] = (),
) -> Case:
    cache_dtype = cache_dtype or dtype
    name = f"prefix-{head_dim}-g{group}-b{block_size}-{dtype}-{cache_dtype}".replace("torch.", "")
    name += "-softcap" if softcap else ""
    arguments = (head_dim, group, block_size, dtype, cache_dtype, softcap)
    narrow = head_dim > 128  # not all chips have the registers for wide ones then
    matrix = None if dtype is torch.float32 else "any" if narrow else "wide"
    return Case(name, functools.partial(launch, *arguments), short, matrix)  # type: ignore[arg-type]


CASES = [
    case(128, short=("sm_90",)),
    case(256, softcap=50.0),
    case(128, cache_dtype=torch.float8_e4m3fn),
    *(case(head_dim) for head_dim in (64, 80, 96, 256, 512)),
    *(case(128, block_size=block_size) for block_size in (16, 32, 128, 256)),
    *(case(128, group=group) for group in (1, 7, 16)),
    *(case(head_dim, cache_dtype=torch.int8) for head_dim in (64, 128, 256, 512)),
    *(case(head_dim, cache_dtype=torch.float8_e4m3fn) for head_dim in (64, 256, 512)),
    *(case(head_dim, dtype=torch.float32) for head_dim in (64, 128, 256, 512)),
    case(128, dtype=torch.float16),
]
