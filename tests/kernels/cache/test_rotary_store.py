"""`rotary_store` of both backends against the reference, in plain caches and in quantized ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer, KVScales
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.reference.kv_cache import LARGEST, quantize
from tests.kernels.conftest import Twin
from tests.support.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
CODES = [torch.int8, torch.float8_e4m3fn]
NORMS = ["before", "after", None]
CACHES = ("key_cache", "value_cache")
Heads = tuple[int, int, int]  # num_heads, num_kv_heads, head_dim


def make(
    device: torch.device,
    num_tokens: int,
    heads: Heads,
    rotary_dim: int,
    block_size: int,
    dtype: torch.dtype,
    codes: torch.dtype | None = None,
    norm: str | None = "before",
) -> dict[str, Any]:
    """Return arguments for `store`, with caches and scales of NaN; every third slot is -1."""
    torch.manual_seed(0)
    num_heads, num_kv_heads, head_dim = heads
    angles = torch.rand(500, rotary_dim // 2) * 6
    shape = (-(-num_tokens // block_size) + 2, num_kv_heads, block_size)
    slots = torch.randperm(shape[0] * block_size)[:num_tokens]
    slots[2::3] = -1
    nothing = torch.full(shape, torch.nan)
    caches = [nothing[..., None].repeat(1, 1, 1, head_dim).to(codes or dtype) for _ in range(2)]
    q_norm, k_norm = (torch.randn(head_dim).to(dtype) for _ in range(2))
    arguments: dict[str, Any] = {
        "qkv": torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype),
        "cos_sin": torch.stack([angles.cos(), angles.sin()], dim=1),
        "positions": torch.randint(0, 500, (num_tokens,)),
        "slots": slots,
        "key_cache": caches[0],
        "value_cache": caches[1],
        "q_norm": None if norm is None else q_norm,
        "k_norm": None if norm is None else k_norm,
        "key_scales": None if codes is None else nothing,
        "value_scales": None if codes is None else nothing.clone(),
    }
    moved = {name: None if each is None else each.to(device) for name, each in arguments.items()}
    return {**moved, "after": norm == "after"}


def store(backend: Any, arguments: dict[str, Any]) -> Tensor:
    """Call `rotary_store` with the caches, scales and norms of the arguments."""
    given = dict(arguments)
    keys, values, key_scales, value_scales, q_norm, k_norm, after = (
        given.pop(name)
        for name in (*CACHES, "key_scales", "value_scales", "q_norm", "k_norm", "after")
    )
    scales = None if key_scales is None else KVScales(key_scales, value_scales)
    norms = None if q_norm is None else HeadNorms(q_norm, k_norm, 1e-6, after)
    queries: Tensor = backend.rotary_store(
        **given, layer=KVLayer(keys, values, scales), norms=norms
    )
    return queries


def on_cpu(arguments: dict[str, Any], *, wide: bool = False) -> dict[str, Any]:
    """Return a copy on the CPU; `wide`: floats in float64, codes unchanged."""
    copies = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            value = value.to("cpu", copy=True)
            value = value.double() if wide and value.dtype in DTYPES else value
        copies[name] = value
    return copies


def written(cache: Tensor, slots: Tensor) -> Tensor:
    """Return the written slots of a cache or of its scales: [num_written, num_kv_heads, ...]."""
    slots = slots[slots >= 0]
    return cache[slots // cache.shape[2], :, slots % cache.shape[2]]


@every_pair(
    in_turn="shape",
    shape=[  # num_tokens, (num_heads, num_kv_heads, head_dim), rotary_dim, block_size
        (1, (2, 2, 64), 64, 16),
        (3, (4, 2, 80), 32, 5),
        (4, (6, 6, 96), 96, 16),
        (7, (28, 4, 128), 128, 1),
        (5, (33, 3, 128), 64, 64),
        (4, (8, 1, 256), 256, 64),
        (70, (3, 1, 64), 64, 64),
    ],
    norm=NORMS,
    dtype=DTYPES,
)
def test_matches_reference(
    shape: tuple[int, Heads, int, int],
    norm: str | None,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    arguments = make(twin.device, *shape, dtype, norm=norm)
    wide = on_cpu(arguments, wide=True)
    expected = store(Backend, wide)
    actual = store(twin.ops, arguments)
    assert actual.dtype is dtype
    assert_close(actual, expected)
    for name in CACHES:
        cache = arguments[name].cpu()
        assert torch.equal(cache.isnan(), wide[name].isnan())  # all other slots are untouched
        assert_close(cache.nan_to_num(7.0), wide[name].nan_to_num(7.0))


@pytest.mark.parametrize("rotary_dim", [32, 96])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_arrive_bit_for_bit(dtype: torch.dtype, rotary_dim: int, twin: Twin) -> None:
    arguments = make(twin.device, 20, (2, 1, 96), rotary_dim, 4, dtype)
    store(twin.ops, arguments)
    values = arguments["qkv"][arguments["slots"] >= 0, -96:]
    assert torch.equal(written(arguments["value_cache"], arguments["slots"])[:, 0], values)


@pytest.mark.parametrize("codes", [None, *CODES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_token_alone_equals_token_in_batch(
    dtype: torch.dtype, codes: torch.dtype | None, twin: Twin
) -> None:
    num_tokens = 150 if isinstance(twin.ops, CpuBackend) else 12
    arguments = make(twin.device, num_tokens, (8, 2, 64), 64, 16, dtype, codes)
    together = store(twin.ops, arguments)
    names = CACHES if codes is None else (*CACHES, "key_scales", "value_scales")

    def stored() -> list[Tensor]:
        return [written(arguments[name].float(), arguments["slots"]) for name in names]

    before = stored()
    for name in names:
        arguments[name].view(torch.uint8).fill_(0x55)
    for token in range(num_tokens):
        one = slice(token, token + 1)
        part = {name: arguments[name][one] for name in ("qkv", "positions", "slots")}
        assert torch.equal(store(twin.ops, arguments | part), together[one])
    assert all(map(torch.equal, before, stored()))


def test_reads_rows_of_a_wider_tensor_and_writes_one_layer(twin: Twin) -> None:
    arguments = make(twin.device, 9, (2, 1, 64), 64, 4, torch.float32)
    expected = store(twin.ops, arguments)
    layers = torch.full((3, 2, *arguments["key_cache"].shape), torch.nan, device=twin.device)
    wider = torch.cat([arguments["qkv"], torch.full_like(arguments["qkv"], torch.nan)], dim=1)
    arguments |= {"key_cache": layers[1, 0], "value_cache": layers[1, 1]}
    arguments["qkv"] = wider[:, : arguments["qkv"].shape[1]]
    assert torch.equal(store(twin.ops, arguments), expected)
    assert layers[[0, 2]].isnan().all()
    assert not layers[1].isnan().all()


def test_no_tokens(twin: Twin) -> None:
    arguments = make(twin.device, 1, (2, 1, 64), 64, 4, torch.bfloat16)
    none = {name: arguments[name][:0] for name in ("qkv", "positions", "slots")}
    assert store(twin.ops, arguments | none).shape == (0, 2, 64)


@pytest.mark.parametrize("codes", [None, torch.int8])
def test_slots_beyond_32_bits_of_elements(codes: torch.dtype | None, twin: Twin) -> None:
    """2^31 elements lie before the slot; on a CPU, untouched pages take no memory."""
    num_blocks = 2**31 // (64 * 256) + 2
    arguments = make(twin.device, 1, (1, 1, 256), 256, 64, torch.bfloat16, codes)
    shape, dtype = (num_blocks, 1, 64), codes or torch.bfloat16
    caches = {name: torch.empty(*shape, 256, dtype=dtype, device=twin.device) for name in CACHES}
    scales = {
        name: torch.empty(shape, device=twin.device) for name in ("key_scales", "value_scales")
    }
    slots = torch.tensor([(num_blocks - 1) * 64 + 3], device=twin.device)
    given = arguments | caches | {"slots": slots}
    value = arguments["qkv"][0, -256:]
    if codes is None:
        store(twin.ops, given)
        assert torch.equal(caches["value_cache"][-1, 0, 3], value)
        return
    store(twin.ops, given | scales)
    expected, scale = quantize(value, codes)
    assert torch.equal(caches["value_cache"][-1, 0, 3], expected)
    assert torch.equal(scales["value_scales"][-1, 0, 3], scale)


@every_pair(
    in_turn="shape",
    # (num_heads, num_kv_heads, head_dim), rotary_dim, block_size
    shape=[
        ((4, 2, 64), 64, 16),
        ((3, 3, 80), 32, 5),
        ((6, 2, 96), 96, 16),
        ((16, 8, 128), 128, 64),
    ],
    codes=CODES,
    dtype=DTYPES,
    norm=NORMS,
)
def test_quantized_matches_reference(
    shape: tuple[Heads, int, int],
    codes: torch.dtype,
    dtype: torch.dtype,
    norm: str | None,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    heads, rotary_dim, block_size = shape
    arguments = make(twin.device, 20, heads, rotary_dim, block_size, dtype, codes, norm)
    for name in CACHES:
        arguments[name].view(torch.uint8).fill_(0x55)
    exact = on_cpu(arguments, wide=True)
    assert_close(store(twin.ops, arguments), store(Backend, exact))
    arguments = on_cpu(arguments)
    slots = arguments["slots"]
    # Values are not computed with, so codes and scales are those of the reference, to the bit.
    values = arguments["qkv"][slots >= 0].unflatten(1, (-1, heads[2]))[:, -heads[1] :]
    expected, expected_scales = quantize(values, codes)
    assert torch.equal(written(arguments["value_scales"], slots), expected_scales)
    kept = written(arguments["value_cache"], slots)
    assert torch.equal(kept.view(torch.uint8), expected.view(torch.uint8))
    # Keys differ by their rounding, which may turn a code into the next one.
    scale, near = (written(each["key_scales"], slots).double() for each in (arguments, exact))
    torch.testing.assert_close(scale, near, rtol=1e-5, atol=0.0)
    kept, near = (written(each["key_cache"], slots).double() for each in (arguments, exact))
    step = torch.ones_like(kept) if codes is torch.int8 else (kept.abs() / 8).clamp(min=2.0**-9)
    assert ((kept - near).abs() <= step).all()
    assert (kept != near).double().mean() < 0.01
    is_free = torch.ones(arguments["key_scales"].shape[0] * block_size, dtype=torch.bool)
    is_free[slots[slots >= 0]] = False
    for name in ("key", "value"):  # all other slots are untouched
        cache, scales = arguments[f"{name}_cache"], arguments[f"{name}_scales"]
        free = cache.view(torch.uint8).transpose(1, 2).flatten(0, 1)[is_free]
        assert (free == 0x55).all()
        assert scales.transpose(1, 2).flatten(0, 1)[is_free].isnan().all()


@pytest.mark.parametrize("codes", CODES)
def test_every_code_is_rounded_as_torch_does(codes: torch.dtype) -> None:
    """By values, all magnitudes down to subnormal ones; `test_gpu_quantize` is for GPUs."""
    torch.manual_seed(0)
    values = torch.randn(400, 64) * torch.randn(400, 64).mul(6).exp()
    values[0, 3], values[1, 60], values[2, 40] = torch.nan, torch.inf, -torch.inf
    values[3], values[4] = 0.0, 1e-42
    values[5] = torch.arange(-32, 32) + 0.5  # halfway between codes of int8
    values[5, 0] = 127
    arguments = make(torch.device("cpu"), 400, (1, 1, 64), 64, 16, torch.float32, codes)
    qkv = torch.cat([torch.zeros(400, 128), values], dim=1)
    slots = torch.arange(400)
    store(CpuBackend, arguments | {"slots": slots, "qkv": qkv})
    expected, scales = quantize(values, codes)
    got = written(arguments["value_cache"], slots)[:, 0]
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    kept = written(arguments["value_scales"], slots)[:, 0]
    assert torch.equal(kept.isnan(), slots < 3)
    assert torch.equal(kept[3:], scales[3:])


@pytest.mark.parametrize("codes", CODES)
def test_what_cannot_be_scaled_stays_visible(codes: torch.dtype, twin: Twin) -> None:
    arguments = make(twin.device, 6, (1, 2, 64), 32, 16, torch.float32, codes, norm=None)
    arguments["slots"] = torch.arange(6, device=twin.device)
    keys, values = arguments["qkv"].view(6, 5, 64)[:, 1:3], arguments["qkv"].view(6, 5, 64)[:, 3:]
    for heads in (keys, values):
        heads[0, 0, 3] = torch.nan  # paired by the rotation, where it is a key
        heads[1, 1, 60] = torch.inf  # passes through
        heads[2, 0, 40] = -torch.inf
        heads[3, 0] = 0.0
        heads[4, 1] = 1e-42  # 1 / 127 of it is not a normal number
    store(twin.ops, arguments)
    spoilt = torch.zeros(6, 2, dtype=torch.bool, device=twin.device)
    spoilt[0, 0] = spoilt[1, 1] = spoilt[2, 0] = True
    for name in ("key", "value"):
        cache, scales = arguments[f"{name}_cache"], arguments[f"{name}_scales"]
        assert torch.equal(scales[0, :, :6].T.isnan(), spoilt)
        assert (scales[0, 0, 3] == 1).all()
        read = cache[0, :, :6].float() * scales[0, :, :6, None]
        assert (read[0, 3] == 0).all()
        assert (read[1, 4].abs() < 1e-38).all()
        assert torch.equal(read.isnan().all(dim=-1).T, spoilt)
        assert torch.equal(read.isnan().any(dim=-1).T, spoilt)


@pytest.mark.parametrize("codes", CODES)
def test_error_is_within_what_quantize_says(codes: torch.dtype) -> None:
    torch.manual_seed(0)
    heads = torch.randn(500, 64, dtype=torch.float64) * torch.randn(500, 64).exp()
    kept, scale = quantize(heads, codes)
    error = (kept.double() * scale[:, None] - heads).abs()
    if codes is torch.int8:
        bound = (scale / 2)[:, None].expand_as(heads)
        assert torch.allclose(scale / 2 * 254, heads.abs().amax(dim=1))
    else:
        small = heads.abs() < scale[:, None] / 64
        bound = torch.where(small, scale[:, None] / 1024, heads.abs() / 16)
    assert (error <= bound * (1 + 1e-6)).all()
    assert (error > bound * 0.9).any(), "a bound that nothing comes near says little"
    assert torch.equal(kept.float().abs().amax(dim=1), torch.full([500], LARGEST[codes]))


@pytest.mark.parametrize("norm", NORMS)
def test_queries_alone_are_prepared_as_beside_keys_and_nothing_is_written(
    norm: str | None, twin: Twin
) -> None:
    arguments = make(twin.device, 6, (4, 2, 32), 32, 4, torch.bfloat16, norm=norm)
    empty = {name: arguments[name].clone() for name in CACHES}
    layer = KVLayer(empty["key_cache"], empty["value_cache"]).without_heads
    alone = arguments | {"qkv": arguments["qkv"][:, : 4 * 32]}
    alone |= {"key_cache": layer.keys, "value_cache": layer.values}
    for backend in (Backend, twin.ops):
        expected = store(backend, arguments)
        assert torch.equal(store(backend, alone), expected)
    assert all(cache.isnan().all() for cache in empty.values())
