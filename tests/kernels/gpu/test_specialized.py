"""Kernels with specialized warps: their choice, and on a GPU the bytes of those in plain Triton."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import KVLayer, PrefixGroups, Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention import attend_tile, prefill_attention, prefix_attention
from pagedrun.kernels.gpu.attention.attend_tile import can_specialize
from pagedrun.kernels.gpu.attention.prefill_attention import prefill_tile
from pagedrun.kernels.gpu.attention.prefix_attention import (
    is_specialized,
    items_at_once,
    matrix_heights,
    prefix_tile,
    prefix_work,
)
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.gpu.chip import Chip
from tests.kernels.conftest import Context, build_context
from tests.kernels.gpu.prefix_rows import P, U, groups_of, nested
from tests.support.attention_cases import Chunk, as_int32, prefill_inputs

BF16 = torch.bfloat16
SM_90 = Chip("cuda", 90, 132, 227 << 10)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose kernels as where nothing is interpreted."""
    monkeypatch.setattr(attend_tile, "INTERPRETED", tl.constexpr(False))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("head_dim", "block_size", "dtype", "cache_dtype", "on", "version", "expected"),
    [
        (128, 64, BF16, BF16, SM_90, "3.9.0", True),
        (64, 128, torch.float16, torch.float16, SM_90, "3.6.0", True),
        (128, 64, BF16, BF16, SM_90, "3.5.1", False),
        (128, 64, BF16, BF16, SM_90, "3.10.0", False),
        (128, 64, BF16, BF16, SM_90, "4.0.0", False),
        (256, 64, BF16, BF16, SM_90, "3.9.0", False),
        (96, 64, BF16, BF16, SM_90, "3.9.0", False),
        (128, 32, BF16, BF16, SM_90, "3.9.0", False),
        (128, 96, BF16, BF16, SM_90, "3.9.0", False),
        (128, 0, BF16, BF16, SM_90, "3.9.0", False),
        (128, 64, BF16, torch.int8, SM_90, "3.9.0", False),
        (128, 64, torch.float32, torch.float32, SM_90, "3.9.0", False),
        (128, 64, BF16, BF16, Chip("cuda", 89, 128, 99 << 10), "3.9.0", False),
        (128, 64, BF16, BF16, Chip("cuda", 100, 148, 227 << 10), "3.9.0", False),
        (128, 64, BF16, BF16, Chip("hip", "gfx942", 304, 64 << 10), "3.9.0", False),
    ],
)
def test_caches_that_they_take(
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    on: Chip,
    version: str,
    expected: bool,
) -> None:
    assert can_specialize(head_dim, block_size, dtype, cache_dtype, on, version) is expected


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_keys_come_in_the_same_tiles_in_both_kinds(head_dim: int) -> None:
    """A block size that the specialized kernels do not take must change no byte."""
    from pagedrun.kernels.gpu.attention.specialized import TILE_KEYS

    assert prefill_tile(head_dim, 4, BF16, False, SM_90).keys == TILE_KEYS
    for height in matrix_heights(head_dim, BF16, BF16, SM_90):
        assert prefix_tile(height, head_dim, 16, BF16, BF16, SM_90).keys == TILE_KEYS


@pytest.mark.usefixtures("compiled")
def test_high_matrices_have_one_program_on_each_processor() -> None:
    shape = AttentionShape(32, 8, 128, BF16, BF16, 64)
    assert not is_specialized(64, shape, SM_90)
    assert is_specialized(128, shape, SM_90)
    assert items_at_once(16, shape, SM_90) == 33
    assert items_at_once(32, shape, SM_90) == 16


@pytest.fixture
def hopper(gpu_device: torch.device) -> torch.device:
    if gpu_device.type == "cpu" or chip.chip_of(gpu_device).matrix_unit != "wgmma":
        pytest.skip("for sm_90: these kernels are not interpreted")
    return gpu_device


# Some of a tile, of several tiles, behind a prefix; 131 chunks are more than one search holds.
SIZES = [(0, 200), (500, 1), (64, 77), (33, 640), (0, 13), (128, 64), (1000, 129)]
CHUNKS: list[Chunk] = [(i, *SIZES[i % len(SIZES)]) for i in range(131)]


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "options"),
    [
        (32, 8, 128, {}),
        (2, 1, 128, {}),
        (28, 4, 128, {"window": 100}),
        (8, 8, 128, {"dtype": torch.float16}),
        (64, 8, 64, {"window": 128, "has_sinks": True}),
        (8, 2, 128, {"softcap": 30.0, "block_size": 128}),
        (12, 12, 64, {"is_causal": False}),
        (8, 2, 128, {"is_causal": False, "window": 70}),
        (8, 2, 128, {"spoilt": "key"}),
        (8, 2, 128, {"spoilt": "value", "window": 100}),
    ],
)
def test_chunks_have_the_bytes_of_plain_triton(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    options: dict[str, Any],
    hopper: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is behind the last token of a block is NaN, and must not be seen; many turns each."""
    dtype = options.get("dtype", BF16)
    is_causal = options.get("is_causal", True)
    chunks = CHUNKS if is_causal else [(i, 0, size) for i, _, size in CHUNKS]
    context = build_context(
        [first + size for _, first, size in chunks],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=options.get("block_size", 64),
        dtype=dtype,
    )
    spoil(context, options.get("spoilt"))
    stored = context.key_cache, context.value_cache, context.block_tables
    keys, values, tables = (each.to(hopper) for each in stored)
    torch.manual_seed(1)
    q = torch.randn(sum(size for *_, size in chunks), num_heads, head_dim).to(dtype).to(hopper)
    sinks = torch.randn(num_heads, device=hopper) if options.get("has_sinks") else None
    softmax = Softmax(head_dim**-0.5, options.get("softcap"), sinks)
    inputs = prefill_inputs(chunks).placed(lambda each: each.to(hopper))
    inputs = replace(inputs, is_causal=is_causal)

    def attend() -> Tensor:
        layer = KVLayer(keys, values)
        window = options.get("window")
        return GpuBackend.prefill_attention(q, layer, tables, inputs, softmax, window)

    monkeypatch.setattr(prefill_attention, "MIN_TOKENS", 0)
    specialized = [attend().view(torch.int16) for _ in range(20)]
    monkeypatch.setattr(prefill_attention, "can_specialize", lambda *_: False)
    plain = attend()
    assert bool(plain.isnan().any()) is ("spoilt" in options)
    assert all(torch.equal(each, plain.view(torch.int16)) for each in specialized)


def spoil(context: Context, what: str | None) -> None:
    """Make keys or values infinite, one that all rows behind it see, and one that only some see."""
    cache = context.key_cache if what == "key" else context.value_cache
    if what is not None:
        cache[context.block_tables[1, 0], 0, 7, 3] = float("inf")
        cache[context.block_tables[0, 3], 0, 2, 5] = float("-inf")


@pytest.mark.parametrize(("group", "head_dim"), [(1, 128), (4, 128), (7, 128), (4, 64)])
def test_prefixes_have_the_states_of_plain_triton(
    group: int, head_dim: int, hopper: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, context, _, shared = nested(head_dim, group, 64, BF16)
    assert_same_states(q, context, groups_of(context, shared, 64), hopper, monkeypatch)


@pytest.mark.parametrize("num_rows", [40, 300])
def test_a_crowd_has_the_states_of_plain_triton(
    num_rows: int, hopper: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = build_context([3 * U * P], num_kv_heads=2, head_dim=128, block_size=64, dtype=BF16)
    rows = np.zeros(num_rows, np.int32)
    groups = groups_of(context, as_int32([3 * U] * num_rows), 64, rows=rows)
    torch.manual_seed(0)
    q = torch.randn(num_rows, 8, 128).bfloat16()
    assert_same_states(q, context, groups, hopper, monkeypatch)


def assert_same_states(
    q: Tensor,
    context: Context,
    groups: PrefixGroups,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = context.key_cache, context.value_cache, context.block_tables
    q, keys, values, tables = (each.to(device) for each in (q, *stored))
    layer = KVLayer(keys, values)
    shape = AttentionShape(q.shape[1], layer.num_kv_heads, q.shape[2], BF16, BF16, 64)
    work = prefix_work(groups, shape, device)
    # Made for matrices of 128 rows, whichever there are.
    group = shape.num_heads // shape.num_kv_heads
    work = type(work).of(groups, 128 // group, device, work.at_once)

    def states() -> tuple[Tensor, ...]:
        partials = prefix_attention.prefix_attention(q, layer, tables, work, Softmax(0.1))
        used = int(partials.num_states.sum())
        parts = (partials.max_scores, partials.sum_exps, partials.accs)
        return tuple(each[:used].clone() for each in parts)

    specialized = [states() for _ in range(20)]
    monkeypatch.setattr(prefix_attention, "can_specialize", lambda *_: False)
    plain = states()
    for found in specialized:
        assert all(torch.equal(ours, its) for ours, its in zip(found, plain, strict=True))
