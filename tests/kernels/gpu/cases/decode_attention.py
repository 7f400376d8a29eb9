"""Head sizes, block sizes and caches that models have, in both forms of decode attention."""

import functools

import torch

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, Softmax
from pagedrun.kernels.gpu.attention.decode_attention import (
    MAX_SINGLE_PASS_DIM,
    decode_single_pass,
    decode_split,
)
from tests.kernels.gpu.ahead_of_time import Case

NUM_ROWS, MAX_BLOCKS, KV_HEADS = 2, 64, 2


def launch(
    head_dim: int,
    group: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    has_prefix: bool,
    has_sinks: bool,
) -> None:
    from pagedrun.kernels.gpu.attention.prefix_work import PrefixPartials

    q = torch.ones(NUM_ROWS, KV_HEADS * group, head_dim, dtype=dtype)
    cache = torch.ones(3, KV_HEADS, block_size, head_dim).to(cache_dtype)
    of_cache = torch.ones(3, KV_HEADS, block_size)
    scales = None if cache_dtype is dtype else KVScales(of_cache, of_cache)
    tables = torch.zeros(NUM_ROWS, MAX_BLOCKS, dtype=torch.int32)
    rows, lengths = torch.zeros(2, NUM_ROWS, dtype=torch.int32)
    state = torch.ones(4, KV_HEADS * group)
    totals = torch.ones(4, KV_HEADS * group, head_dim)
    sinks = torch.ones(KV_HEADS * group) if has_sinks else None
    prefix = PrefixPartials(state, state, totals, rows, rows, lengths) if has_prefix else None
    forms = [decode_single_pass, decode_split]
    for form in forms[head_dim > MAX_SINGLE_PASS_DIM :]:
        inputs = DecodeInputs(rows, lengths)
        layer = KVLayer(cache, cache, scales)
        form(q, layer, tables, inputs, Softmax(0.1, softcap, sinks), window, prefix)


def case(
    head_dim: int,
    group: int = 4,
    block_size: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    window: int | None = None,
    softcap: float | None = None,
    has_prefix: bool = False,
    has_sinks: bool = False,
    short: tuple[str, ...] = (),
) -> Case:
    cache_dtype = cache_dtype or dtype
    name = f"decode-{head_dim}-g{group}-b{block_size}-{dtype}-{cache_dtype}".replace("torch.", "")
    options = {"window": window, "softcap": softcap, "prefix": has_prefix, "sinks": has_sinks}
    name += "".join(f"-{given}" for given, value in options.items() if value)
    arguments = (head_dim, group, block_size, dtype, cache_dtype, *options.values())
    matrix = None if dtype is torch.float32 else "any"
    return Case(name, functools.partial(launch, *arguments), short, matrix)  # type: ignore[arg-type]


CASES = [
    case(128, has_prefix=True),
    case(256, window=1000, softcap=50.0),
    case(128, cache_dtype=torch.float8_e4m3fn),
    case(64, group=8, has_prefix=True, has_sinks=True, short=("gfx942",)),
    case(64, group=8, window=128, has_sinks=True),
    *(case(head_dim, has_prefix=True) for head_dim in (64, 80, 96, 256)),
    *(case(128, block_size=block_size) for block_size in (16, 32, 128, 256)),
    *(case(128, group=group) for group in (1, 7, 24)),
    *(case(head_dim, cache_dtype=torch.int8, has_prefix=True) for head_dim in (64, 128, 256)),
    *(case(head_dim, cache_dtype=torch.float8_e4m3fn, has_prefix=True) for head_dim in (64, 256)),
    *(case(head_dim, dtype=torch.float32, has_prefix=True) for head_dim in (64, 128)),
    # The layers of Gemma 4 that read everything.
    case(512, group=8, has_prefix=True),
    *(case(512, group=8, cache_dtype=each) for each in (torch.int8, torch.float8_e4m3fn)),
    case(128, dtype=torch.float16, window=4096),
]
