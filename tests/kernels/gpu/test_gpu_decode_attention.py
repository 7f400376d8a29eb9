"""Decode attention on a GPU, or interpreted: against float64, and both forms byte for byte."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.decode_attention import (
    DECODE_PARTITION,
    decode_attention,
    decode_single_pass,
    decode_split,
    max_row_partitions,
)
from pagedrun.kernels.reference import attention as reference
from tests.kernels.conftest import Context, build_context
from tests.support.attention_cases import as_int32, assert_near, in_float64, on_device
from tests.support.every_pair import every_pair, long_except

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FORMS = (decode_single_pass, decode_split)
P = DECODE_PARTITION
# Every head size and block size; with those that are `long`, every group size, and each head size
# with each block size.
SHAPES = [
    (64, 5, 1, BF16), (80, 256, 7, FP16), (96, 32, 16, BF16), (128, 64, 17, BF16),
    (256, 128, 2, FP32), (512, 16, 8, BF16),
]  # fmt: skip
OTHER_SHAPES = [
    (64, 16, 1, BF16), (64, 64, 3, FP32), (80, 16, 7, BF16), (128, 16, 8, FP16),
    (128, 128, 2, FP32), (256, 64, 4, BF16),
    (64, 32, 2, FP16), (64, 128, 4, BF16), (64, 256, 16, BF16), (80, 64, 8, FP32),
    (80, 32, 3, BF16), (80, 128, 1, BF16), (96, 16, 4, FP32), (96, 64, 1, BF16),
    (96, 128, 7, FP16), (96, 256, 3, BF16), (128, 32, 4, BF16), (128, 256, 1, BF16),
    (256, 16, 2, BF16), (256, 32, 1, FP32), (256, 128, 3, FP16), (256, 256, 8, BF16),
]  # fmt: skip


def ragged(
    lengths: list[int],
    head_dim: int,
    block_size: int,
    group: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> tuple[Tensor, Context, Tensor]:
    """Return queries, a scattered memory full of NaN where nothing is written, and lengths."""
    context = build_context(
        [max(1, length) for length in lengths],
        num_kv_heads=2,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(len(lengths), 2 * group, head_dim, generator=generator).to(dtype)
    return q, context, as_int32(lengths)


def run(
    form: Callable[..., Tensor],
    device: torch.device,
    q: Tensor,
    context: Context,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    rows = DecodeInputs(torch.arange(len(q), dtype=torch.int32), lengths)
    layer = on_device(KVLayer(context.key_cache, context.value_cache, scales), device)
    tables, rows = context.block_tables.to(device), rows.placed(lambda each: each.to(device))
    softmax = Softmax(scale, softcap, None if sinks is None else sinks.to(device))
    out = form(q.to(device), layer, tables, rows, softmax, window)
    assert out.dtype is q.dtype
    return out.cpu()


def expect(q: Tensor, context: Context, lengths: Tensor, scale: float, **options: Any) -> Tensor:
    layer = KVLayer(context.key_cache, context.value_cache, options.pop("scales", None))
    layer = in_float64(layer)
    rows = DecodeInputs(torch.arange(len(q), dtype=torch.int32), lengths)
    softmax = Softmax(scale, options.pop("softcap", None), options.pop("sinks", None))
    return reference.decode_attention(
        q.double(), layer, context.block_tables, rows, softmax, **{"window": None} | options
    )


@pytest.mark.parametrize(
    ("head_dim", "block_size", "group", "dtype"),
    [*SHAPES, *(pytest.param(*each, marks=pytest.mark.long) for each in OTHER_SHAPES)],
)
def test_both_forms_match_the_reference_and_each_other(
    head_dim: int, block_size: int, group: int, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    lengths = [1, 0, block_size + 1, P + 70]
    q, context, context_lens = ragged(lengths, head_dim, block_size, group, dtype)
    scale = head_dim**-0.5
    once, split = (run(form, gpu_device, q, context, context_lens, scale) for form in FORMS)
    assert_near(once, expect(q, context, context_lens, scale))
    assert torch.equal(once, split)
    assert not once[1].any()  # the empty slot


@pytest.mark.parametrize("window", long_except([1, 33, 64, 65, P, P + 1], [65, P + 1]))
def test_a_window_begins_anywhere(window: int, gpu_device: torch.device) -> None:
    lengths = [1, 65, P + 1, 2 * P]
    q, context, context_lens = ragged(lengths, 64, 16, 2, FP32)
    once, split = (
        run(form, gpu_device, q, context, context_lens, 0.125, window=window) for form in FORMS
    )
    assert_near(once, expect(q, context, context_lens, 0.125, window=window))
    assert torch.equal(once, split)


@settings(max_examples=3, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 1200), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 1200),
    block_size=st.sampled_from([16, 64, 256]),
    seed=st.integers(0, 99),
)
def test_any_lengths_and_window(
    lengths: list[int], window: int | None, block_size: int, seed: int
) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    q, context, context_lens = ragged(lengths, 64, block_size, 3, BF16, seed)
    once, split = (
        run(form, device, q, context, context_lens, 0.125, window=window) for form in FORMS
    )
    assert_near(once, expect(q, context, context_lens, 0.125, window=window))
    assert torch.equal(once, split)


@every_pair(in_turn="window", window=[None, 70], dtype=[FP32, BF16])
def test_both_forms_join_the_sinks_alike(
    dtype: torch.dtype, window: int | None, gpu_device: torch.device
) -> None:
    q, context, lengths = ragged([1, 0, 300, P + 5], 64, 64, 3, dtype)
    sinks = torch.tensor([1.0, -2.0, 0.3, 4.0, 0.0, -0.7])
    once, split = (
        run(form, gpu_device, q, context, lengths, 0.125, window, sinks=sinks) for form in FORMS
    )
    assert_near(once, expect(q, context, lengths, 0.125, window=window, sinks=sinks))
    assert torch.equal(once, split)
    assert not once[1].any()


@pytest.mark.parametrize("dtype", long_except([FP32, BF16], [BF16]))
def test_scores_are_capped(dtype: torch.dtype, gpu_device: torch.device) -> None:
    q, context, lengths = ragged([1, 300, P + 5], 64, 64, 4, dtype)
    q = q * 20  # scores far beyond the cap
    once, split = (run(form, gpu_device, q, context, lengths, 1.0, softcap=5.0) for form in FORMS)
    expected = expect(q, context, lengths, 1.0, softcap=5.0)
    assert_near(once, expected)
    assert torch.equal(once, split)
    assert (expected - expect(q, context, lengths, 1.0)).abs().max() > 0.1


@every_pair(
    in_turn="tokens",
    tokens=[(BF16, 16), (FP16, 64), (FP32, 128)],  # dtype, block_size
    codes=[(torch.int8, 90), (torch.float8_e4m3fn, 80), (torch.float8_e4m3fn, 90)],  # and chip
)
def test_quantised_caches(
    tokens: tuple[torch.dtype, int],
    codes: tuple[torch.dtype, int],
    gpu_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache_dtype, arch = codes
    if gpu_device.type == "cpu":  # an sm_80 has no float8 and takes its bits apart
        on = chip.chip_of(gpu_device)
        monkeypatch.setattr(chip, "chip_of", lambda device: replace(on, arch=arch))
    dtype, block_size = tokens
    q, context, lengths = ragged([1, 0, 65, P + 17], 64, block_size, 3, FP32)
    q = q.to(dtype)
    quantised, scales = [], []
    for cache in (context.key_cache, context.value_cache):
        # What is not written is as bad as it can be: NaN scales, and NaN codes where there are any.
        scale = cache.abs().amax(dim=-1) / (100.0 if cache_dtype is torch.int8 else 448.0)
        code = (cache / scale[..., None]).nan_to_num(
            127 if cache_dtype is torch.int8 else torch.nan
        )
        quantised.append(
            code.round().to(cache_dtype) if cache_dtype is torch.int8 else code.to(cache_dtype)
        )
        scales.append(scale)
    context, both = Context(quantised[0], quantised[1], context.block_tables), KVScales(*scales)
    once, split = (run(form, gpu_device, q, context, lengths, 0.125, scales=both) for form in FORMS)
    assert_near(once, expect(q, context, lengths, 0.125, scales=both))
    assert torch.equal(once, split)


@pytest.mark.invariant("same bytes whatever runs beside a row")
def test_a_row_gets_the_same_bytes_in_any_batch(gpu_device: torch.device) -> None:
    lengths = [5, 0, 128, P + 70]
    q, context, context_lens = ragged(lengths, 80, 16, 3, BF16)
    together = run(decode_attention, gpu_device, q, context, context_lens, 0.1)
    crowd = torch.arange(len(lengths)).repeat(2)  # each twice, in one pass
    twice = replace(context, block_tables=context.block_tables[crowd])
    many = run(decode_single_pass, gpu_device, q[crowd], twice, context_lens[crowd], 0.1)
    for row in range(len(lengths)):
        one = slice(row, row + 1)
        # A table that just holds the row: other shapes, other splits.
        width = max(1, -(-lengths[row] // 16))
        table = replace(context, block_tables=context.block_tables[one, :width].contiguous())
        alone = run(decode_attention, gpu_device, q[one], table, context_lens[one], 0.1)
        assert torch.equal(alone, together[one])
        assert torch.equal(many[row::4], together[row].expand(2, -1, -1))


def test_bytes_depend_neither_on_block_size_nor_on_where_blocks_lie(
    gpu_device: torch.device,
) -> None:
    dense = torch.randn(2, 700, 2, 64).to(BF16)
    results = []
    for block_size, seed in ((5, 1), (64, 3), (256, 4), (64, 5)):
        q, context, lengths = ragged([700], 64, block_size, 2, BF16, seed)
        positions = torch.arange(700)
        slots = (context.block_tables[0, positions // block_size].long(), slice(None))
        context.key_cache[(*slots, positions % block_size)] = dense[0]
        context.value_cache[(*slots, positions % block_size)] = dense[1]
        q = torch.ones_like(q)
        results.append(run(decode_attention, gpu_device, q, context, lengths, 0.1, window=600))
    assert all(torch.equal(each, results[0]) for each in results)


def test_blocks_beyond_two_to_the_31_elements(gpu_device: torch.device) -> None:
    """The memory is never touched but for two blocks: the system gives it no pages."""
    num_blocks = (1 << 31) // (2 * 16 * 64) + 8
    far = [num_blocks - 1, num_blocks - 3]
    cache = torch.empty(num_blocks, 2, 16, 64, dtype=torch.int8, device=gpu_device)
    scales = torch.empty(num_blocks, 2, 16, device=gpu_device)
    for block in far:
        cache[block] = torch.randint(-100, 100, (2, 16, 64), dtype=torch.int8)
        scales[block] = torch.rand(2, 16)
    q, lengths = torch.randn(1, 4, 64), as_int32([30])
    near = Context(cache[far].cpu(), cache[far].cpu(), as_int32([0, 1])[None])
    near_scales = KVScales(scales[far].cpu(), scales[far].cpu())
    expected = expect(q, near, lengths, 0.01, scales=near_scales)
    for form in FORMS:
        out = run(
            form, gpu_device, q, Context(cache, cache, as_int32(far)[None]), lengths, 0.01,
            scales=KVScales(scales, scales),
        )  # fmt: skip
        assert_near(out, expected)


def test_a_nan_in_the_context_is_not_hidden(gpu_device: torch.device) -> None:
    for cache in ("key_cache", "value_cache"):
        q, context, lengths = ragged([100, 100], 64, 16, 1, FP32)
        getattr(context, cache)[context.block_tables[0, 2].long(), :, 3, 1] = torch.nan
        for form in FORMS:
            out = run(form, gpu_device, q, context, lengths, 0.125)
            assert out[0].isnan().any()
            assert not out[1].isnan().any()


def test_large_scores_neither_overflow_nor_vanish(gpu_device: torch.device) -> None:
    q, context, lengths = ragged([P + 400], 64, 16, 2, BF16)
    q = q * 300  # scores of thousands: one key takes all
    out = run(decode_attention, gpu_device, q, context, lengths, 1.0)
    assert_near(out, expect(q, context, lengths, 1.0))


def test_no_rows(gpu_device: torch.device) -> None:
    q, context, lengths = ragged([9], 64, 16, 2, BF16)
    assert run(decode_attention, gpu_device, q[:0], context, lengths[:0], 1.0).shape == (0, 4, 64)


def test_one_pass_where_rows_fill_the_chip(
    gpu_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for form in FORMS:
        monkeypatch.setattr(
            sys.modules[decode_attention.__module__],
            form.__name__,
            lambda q, *rest, name=form.__name__: calls.append((len(q), name)),
        )
    num_processors = chip.chip_of(gpu_device).num_processors
    layer = KVLayer(*torch.empty(2, 1, 2, 16, 64))
    for num_rows, width in ((num_processors, 1000), (num_processors - 1, 1000), (1, P // 16)):
        tables = torch.zeros(num_rows, width, dtype=torch.int32)
        q = torch.empty(num_rows, 2, 64, device=gpu_device)
        decode_attention(
            q, layer, tables, DecodeInputs(tables[:, 0], tables[:, 0]), Softmax(1.0), None
        )
    one, two = decode_single_pass.__name__, decode_split.__name__
    assert calls == [(num_processors, one), (num_processors - 1, two), (1, one)]


@pytest.mark.parametrize("window", [None, 1, P, P + 1, 5000])
def test_a_row_never_has_more_partitions_than_there_is_room_for(window: int | None) -> None:
    for length in range(1, 4 * P, 37):
        first = 0 if window is None else max(0, length - window)
        needed = -(-length // P) - first // P
        assert needed <= max_row_partitions(length, window)
