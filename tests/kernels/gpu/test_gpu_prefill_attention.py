from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, KVScales, PrefillInputs, Softmax
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.reference import attention as reference
from pagedrun.kernels.reference.kv_cache import quantize
from tests.support.attention_cases import Chunk, in_float64, on_device, prefill_inputs
from tests.support.every_pair import every_pair, long_except

DTYPES = [torch.float32, torch.bfloat16]
CODES = [torch.int8, torch.float8_e4m3fn]


def layer_of(context: Any, codes: torch.dtype | None) -> KVLayer:
    """Return a context's caches, quantised if asked for; what is not written gets scale NaN."""
    if codes is None:
        return KVLayer(context.key_cache, context.value_cache)
    keys, key_scales = quantize(context.key_cache, codes)
    values, value_scales = quantize(context.value_cache, codes)
    return KVLayer(keys, values, KVScales(key_scales, value_scales))


def run(
    device: torch.device,
    q: Tensor,
    context: Any,
    chunks: list[Chunk],
    codes: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    """Run chunks whose queries are `q` in order; the result is on the CPU."""
    layer = on_device(layer_of(context, codes), device)
    inputs = prefill_inputs(chunks).placed(lambda each: each.to(device))
    return call(
        GpuBackend, q.to(device), layer, context.block_tables.to(device), inputs, options
    ).cpu()


def expect(
    q: Tensor, context: Any, chunks: list[Chunk], codes: torch.dtype | None = None, **options: Any
) -> Tensor:
    """Return what the reference makes of the same in float64."""
    layer, inputs = in_float64(layer_of(context, codes)), prefill_inputs(chunks)
    return call(reference, q.double(), layer, context.block_tables, inputs, options)


def call(
    backend: Any,
    q: Tensor,
    layer: KVLayer,
    tables: Tensor,
    chunks: PrefillInputs,
    options: dict[str, Any],
) -> Tensor:
    softmax = Softmax(q.shape[2] ** -0.5, options.get("softcap"))
    window = options.get("window")
    chunks = replace(chunks, is_causal=options.get("is_causal", True))
    out: Tensor = backend.prefill_attention(q, layer, tables, chunks, softmax, window)
    return out


def queries(chunks: list[Chunk], num_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(sum(size for _, _, size in chunks), num_heads, head_dim).to(dtype)


def lengths(chunks: list[Chunk]) -> list[int]:
    return [first + size for _, first, size in chunks]


@every_pair(
    in_turn="shape",
    # num_kv_heads, group, head_dim, block_size
    shape=[
        (2, 4, 64, 64),
        (1, 7, 80, 16),
        (2, 1, 96, 256),
        (1, 2, 128, 5),
        (1, 1, 256, 32),
        (1, 8, 512, 16),
    ],
    window=[None, 1, 20, 70],
    is_causal=[True, False],
    dtype=DTYPES,
)
def test_matches_reference(
    shape: tuple[int, int, int, int],
    window: int | None,
    is_causal: bool,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
    gpu_device: torch.device,
) -> None:
    num_kv_heads, group, head_dim, block_size = shape
    chunks = [(0, 0, 1), (1, 5, 63), (2, 63, 2), (3, 130, 1), (4, 0, 75)]
    context = make_context(
        lengths(chunks),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    q = queries(chunks, num_kv_heads * group, head_dim, dtype)
    out = run(gpu_device, q, context, chunks, window=window, is_causal=is_causal)
    assert out.dtype is dtype
    assert_close(out, expect(q, context, chunks, window=window, is_causal=is_causal))


@every_pair(
    shape=[(64, 16), (80, 64), (128, 64)],  # head_dim, block_size
    window=[None, 30],
    is_causal=[True, False],
    codes=CODES,
    dtype=DTYPES,
)
def test_quantised_matches_reference(
    shape: tuple[int, int],
    window: int | None,
    is_causal: bool,
    codes: torch.dtype,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
    gpu_device: torch.device,
) -> None:
    head_dim, block_size = shape
    chunks = [(0, 0, 1), (1, 70, 40), (2, 0, 90)]
    context = make_context(
        lengths(chunks), num_kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    q = queries(chunks, 4, head_dim, dtype)
    options = {"window": window, "is_causal": is_causal}
    out = run(gpu_device, q, context, chunks, codes, **options)
    assert_close(out, expect(q, context, chunks, codes, **options))


@every_pair(softcap=[0.5, 30.0], codes=[None, torch.int8], dtype=DTYPES)
def test_softcap_matches_reference(
    softcap: float,
    codes: torch.dtype | None,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
    gpu_device: torch.device,
) -> None:
    chunks = [(0, 70, 5), (1, 0, 66)]
    context = make_context(lengths(chunks), num_kv_heads=1, head_dim=64, block_size=16, dtype=dtype)
    q = queries(chunks, 2, 64, dtype) * 4
    out = run(gpu_device, q, context, chunks, codes, softcap=softcap)
    expected = expect(q, context, chunks, codes, softcap=softcap)
    assert_close(out, expected)
    assert (expected - expect(q, context, chunks, codes)).abs().max() > 1e-2


@pytest.mark.invariant("same bytes in any chunks")
@every_pair(
    shape=[(1, 2, 64), (1, 3, 80)],  # num_kv_heads, group, head_dim
    window=[None, 40],
    codes=[None, torch.float8_e4m3fn],
    dtype=DTYPES,
)
def test_prefill_in_chunks_equals_prefill_at_once(
    shape: tuple[int, int, int],
    window: int | None,
    codes: torch.dtype | None,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    gpu_device: torch.device,
) -> None:
    length = 100
    num_kv_heads, group, head_dim = shape
    full = make_context(
        [length], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=16, dtype=dtype
    )
    q = queries([(0, 0, length)], num_kv_heads * group, head_dim, dtype)
    at_once = run(gpu_device, q, full, [(0, 0, length)], codes, window=window)
    for borders in (
        [0, 1, 63, 64, length],
        [*range(0, length, 77), length],
    ):
        # As in a run: while a chunk is computed, nothing after it is written yet.
        growing = make_context(
            [length], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=16, dtype=dtype
        )
        growing.key_cache.fill_(torch.nan)
        growing.value_cache.fill_(torch.nan)
        for first, end in pairwise(borders):
            slots = torch.arange(first, end)
            place = (full.block_tables[0, slots // 16].long(), slice(None), slots % 16)
            growing.key_cache[place] = full.key_cache[place]
            growing.value_cache[place] = full.value_cache[place]
            chunk = [(0, first, end - first)]
            out = run(gpu_device, q[first:end], growing, chunk, codes, window=window)
            assert torch.equal(out, at_once[first:end]), (borders, first)


@pytest.mark.heavy("same bytes, on the interpreted kernel")
@pytest.mark.invariant("same bytes in any chunks")
@pytest.mark.parametrize("dtype", long_except(DTYPES, [torch.bfloat16]))
def test_chunk_alone_equals_chunk_in_batch(
    dtype: torch.dtype, make_context: Callable[..., Any], gpu_device: torch.device
) -> None:
    # More chunks than one load of the search finds, and one that is long beside them.
    chunks = [(row, row % 7, 1 + row % 3) for row in range(130)] + [(130, 3, 20)]
    context = make_context(lengths(chunks), num_kv_heads=1, head_dim=64, block_size=16, dtype=dtype)
    q = queries(chunks, 3, 64, dtype)
    together = run(gpu_device, q, context, chunks)
    starts = [0, *accumulate(size for _, _, size in chunks)]
    for chunk in (0, 5, 127, 128, 130):
        rows = slice(starts[chunk], starts[chunk + 1])
        alone = run(gpu_device, q[rows], context, [chunks[chunk]])
        assert torch.equal(alone, together[rows]), chunk


@every_pair(
    in_turn="poison",
    position=[3, 87],
    spoilt=["key_cache", "value_cache"],
    poison=[torch.nan, torch.inf, -torch.inf],
    is_causal=[True, False],
    dtype=DTYPES,
)
def test_what_is_not_finite_spoils_those_who_see_it_and_no_others(
    position: int,
    spoilt: str,
    poison: float,
    is_causal: bool,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    gpu_device: torch.device,
) -> None:
    context = make_context([100], num_kv_heads=2, head_dim=64, block_size=16, dtype=dtype)
    block = int(context.block_tables[0, position // 16])
    getattr(context, spoilt)[block, 1, position % 16, 3] = poison
    q = queries([(0, 0, 100)], 2, 64, dtype)
    for window in (None, 20):
        seen = torch.zeros(100, 2, dtype=torch.bool)
        reach = 100 if window is None else window
        first = position if is_causal else max(position - reach + 1, 0)
        seen[first : position + reach, 1:] = True
        out = run(gpu_device, q, context, [(0, 0, 100)], window=window, is_causal=is_causal)
        assert torch.equal(out.isnan().all(dim=-1), seen)
        assert torch.equal(out.isfinite().all(dim=-1), ~seen)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("which", ["keys", "values"])
def test_a_scale_of_nan_spoils_those_who_see_it_and_no_others(
    which: str, codes: torch.dtype, make_context: Callable[..., Any], gpu_device: torch.device
) -> None:
    context = make_context([150], num_kv_heads=1, head_dim=64, block_size=16, dtype=torch.float32)
    cache = context.key_cache if which == "keys" else context.value_cache
    for position in (70, 145):
        cache[context.block_tables[0, position // 16], :, position % 16, 5] = torch.inf
    q = queries([(0, 0, 150)], 2, 64, torch.float32)
    out = run(gpu_device, q, context, [(0, 0, 150)], codes, window=10)
    seen = torch.zeros(150, dtype=torch.bool)
    seen[70:80] = seen[145:] = True
    assert torch.equal(out.isnan().all(dim=-1).all(dim=-1), seen)
    assert out[~seen].isfinite().all()


def test_no_tokens(make_context: Callable[..., Any], gpu_device: torch.device) -> None:
    context = make_context([3], num_kv_heads=1, head_dim=64, block_size=4, dtype=torch.bfloat16)
    q = torch.zeros(0, 2, 64, dtype=torch.bfloat16)
    assert run(gpu_device, q, context, [(0, 0, 0)]).shape == (0, 2, 64)


def test_chunks_without_tokens_cost_no_result(
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
    gpu_device: torch.device,
) -> None:
    context = make_context([9], num_kv_heads=1, head_dim=64, block_size=4, dtype=torch.float32)
    q = queries([(0, 0, 9)], 2, 64, torch.float32)
    out = run(gpu_device, q, context, [(0, 0, 0), (0, 2, 7), (0, 0, 0), (0, 4, 2), (0, 0, 0)])
    assert_close(out, expect(q, context, [(0, 2, 7), (0, 4, 2)]))


def test_blocks_beyond_32_bits_of_elements(gpu_device: torch.device) -> None:
    # 2^31 elements lie before the block: an int32 offset would wrap. On a CPU, pages that nothing
    # touches take no memory.
    num_blocks = 2**31 // (64 * 128) + 2
    generator = torch.Generator().manual_seed(0)
    codes, scales = [], []
    for _ in range(2):
        tokens, scale = quantize(torch.randn(1, 64, 128, generator=generator), torch.int8)
        codes.append(torch.empty(num_blocks, 1, 64, 128, dtype=torch.int8, device=gpu_device))
        scales.append(torch.empty(num_blocks, 1, 64, device=gpu_device))
        codes[-1][-1], scales[-1][-1] = tokens.to(gpu_device), scale.to(gpu_device)
    q = queries([(0, 0, 64)], 1, 128, torch.float32).to(gpu_device)
    table = torch.tensor([[num_blocks - 1]], dtype=torch.int32, device=gpu_device)
    chunk = prefill_inputs([(0, 0, 64)]).placed(lambda each: each.to(gpu_device))
    far = call(GpuBackend, q, KVLayer(codes[0], codes[1], KVScales(*scales)), table, chunk, {})
    keys, values, *of_both = (each[-1:].clone() for each in (*codes, *scales))
    near = call(GpuBackend, q, KVLayer(keys, values, KVScales(*of_both)), table * 0, chunk, {})
    assert torch.equal(far, near)
    assert far.isfinite().all()
