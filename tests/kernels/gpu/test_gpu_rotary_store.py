from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer, KVScales
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.reference.kv_cache import LARGEST, quantize
from tests.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
CODES = [torch.int8, torch.float8_e4m3fn]


def make(
    device: torch.device,
    num_tokens: int,
    heads: tuple[int, int, int],
    rotary_dim: int,
    block_size: int,
    dtype: torch.dtype,
    codes: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return arguments for `rotary_store` with caches of NaN; every third slot is -1."""
    torch.manual_seed(0)
    num_heads, num_kv_heads, head_dim = heads
    angles = torch.rand(500, rotary_dim // 2) * 6
    shape = (-(-num_tokens // block_size) + 2, num_kv_heads, block_size)
    slots = torch.randperm(shape[0] * block_size)[:num_tokens]
    slots[2::3] = -1
    nothing = torch.full(shape, torch.nan)
    caches = [nothing[..., None].repeat(1, 1, 1, head_dim).to(codes or dtype) for _ in range(2)]
    arguments = {
        "qkv": torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype),
        "cos_sin": torch.stack([angles.cos(), angles.sin()], dim=1),
        "positions": torch.randint(0, 500, (num_tokens,)),
        "slots": slots,
        "key_cache": caches[0],
        "value_cache": caches[1],
        "q_norm": torch.randn(head_dim).to(dtype),
        "k_norm": torch.randn(head_dim).to(dtype),
        "eps": 1e-6,
    }
    arguments = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }
    if codes is not None:
        arguments["scales"] = KVScales(nothing.to(device), nothing.clone().to(device))
    return arguments


def store(backend: Any, arguments: dict[str, Any]) -> Tensor:
    """Call `rotary_store` with a layer made of the caches, and norms of what is there of them."""
    given = dict(arguments)
    layer = KVLayer(given.pop("key_cache"), given.pop("value_cache"), given.pop("scales", None))
    q_norm, k_norm, eps = (given.pop(name) for name in ("q_norm", "k_norm", "eps"))
    after = given.pop("after_rotation", False)
    norms = None if k_norm is None else HeadNorms(q_norm, k_norm, eps, after)
    queries: Tensor = backend.rotary_store(**given, layer=layer, norms=norms)
    return queries


def in_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a copy for the reference: floats wide, quantised caches as they are."""
    wide = {}
    for name, value in arguments.items():
        if isinstance(value, KVScales):
            value = KVScales(value.keys.double(), value.values.double())
        elif isinstance(value, Tensor):
            value = value.double() if value.dtype in DTYPES else value.clone()
        wide[name] = value
    return wide


def written_vectors(cache: Tensor, slots: Tensor) -> Tensor:
    """Return [num_written, num_kv_heads, ...] of a cache or of its scales."""
    slots = slots[slots >= 0]
    return cache[slots // cache.shape[2], :, slots % cache.shape[2]]


@every_pair(
    shape=[  # num_tokens, (num_heads, num_kv_heads, head_dim), rotary_dim, block_size
        (1, (2, 2, 64), 64, 16),
        (3, (4, 2, 80), 32, 5),
        (4, (6, 6, 96), 96, 16),
        (7, (28, 4, 128), 128, 1),
        (5, (33, 3, 128), 64, 64),
        (4, (8, 1, 256), 256, 64),
    ],
    norm=["before", "after", None],
    dtype=DTYPES,
)
def test_matches_reference(
    shape: tuple[int, tuple[int, int, int], int, int],
    norm: str | None,
    dtype: torch.dtype,
    gpu_device: torch.device,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    arguments = make(gpu_device, *shape, dtype)
    arguments["after_rotation"] = norm == "after"
    if norm is None:
        arguments |= {"q_norm": None, "k_norm": None}
    wide = in_float64(arguments)
    expected = store(Backend, wide)
    actual = store(GpuBackend, arguments)
    assert actual.dtype is dtype
    assert_close(actual, expected)
    for name in ("key_cache", "value_cache"):
        # Slots that nothing went to are untouched in both.
        assert torch.equal(arguments[name].isnan(), wide[name].isnan())
        assert_close(arguments[name].nan_to_num(7.0), wide[name].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_arrive_bit_for_bit(dtype: torch.dtype, gpu_device: torch.device) -> None:
    arguments = make(gpu_device, 8, (2, 1, 96), 32, 4, dtype)
    store(GpuBackend, arguments)
    values = arguments["qkv"][arguments["slots"] >= 0, -96:]
    kept = written_vectors(arguments["value_cache"], arguments["slots"])
    assert torch.equal(kept[:, 0], values)


@pytest.mark.parametrize("codes", [None, *CODES])
def test_token_alone_equals_token_in_batch(
    codes: torch.dtype | None, gpu_device: torch.device
) -> None:
    arguments = make(gpu_device, 12, (8, 2, 64), 64, 16, torch.bfloat16, codes)
    together = store(GpuBackend, arguments)
    names = ("key_cache", "value_cache")
    before = [written_vectors(arguments[name].float(), arguments["slots"]) for name in names]
    for name in names:
        arguments[name].view(torch.uint8).fill_(0x55)
    for token in range(12):
        one = slice(token, token + 1)
        part = {name: arguments[name][one] for name in ("qkv", "positions", "slots")}
        assert torch.equal(store(GpuBackend, arguments | part), together[one])
    after = [written_vectors(arguments[name].float(), arguments["slots"]) for name in names]
    assert all(map(torch.equal, before, after))


def test_reads_rows_of_a_wider_tensor_and_writes_one_layer(gpu_device: torch.device) -> None:
    arguments = make(gpu_device, 9, (2, 1, 64), 64, 4, torch.float32)
    expected = store(GpuBackend, arguments)
    layers = torch.full((3, 2, *arguments["key_cache"].shape), torch.nan, device=gpu_device)
    wider = torch.cat([arguments["qkv"], torch.full_like(arguments["qkv"], torch.nan)], dim=1)
    arguments |= {"key_cache": layers[1, 0], "value_cache": layers[1, 1]}
    arguments["qkv"] = wider[:, : arguments["qkv"].shape[1]]
    assert torch.equal(store(GpuBackend, arguments), expected)
    assert layers[[0, 2]].isnan().all()
    assert not layers[1].isnan().all()


def test_no_tokens(gpu_device: torch.device) -> None:
    arguments = make(gpu_device, 1, (2, 1, 64), 64, 4, torch.bfloat16)
    none = {name: arguments[name][:0] for name in ("qkv", "positions", "slots")}
    assert store(GpuBackend, arguments | none).shape == (0, 2, 64)


def test_slots_beyond_32_bits_of_elements(gpu_device: torch.device) -> None:
    # 2^31 elements lie before the slot: an int32 offset would wrap. On a CPU, pages that nothing
    # touches take no memory.
    num_blocks = 2**31 // (64 * 256) + 2
    arguments = make(gpu_device, 1, (1, 1, 256), 256, 64, torch.bfloat16, torch.int8)
    shape = (num_blocks, 1, 64)
    caches = [torch.empty(*shape, 256, dtype=torch.int8, device=gpu_device) for _ in range(2)]
    scales = KVScales(*(torch.empty(shape, device=gpu_device) for _ in range(2)))
    slots = torch.tensor([(num_blocks - 1) * 64 + 3], device=gpu_device)
    arguments |= {"key_cache": caches[0], "value_cache": caches[1], "scales": scales}
    store(GpuBackend, arguments | {"slots": slots})
    codes, scale = quantize(arguments["qkv"][0, -256:], torch.int8)
    assert torch.equal(caches[1][-1, 0, 3], codes)
    assert torch.equal(scales.values[-1, 0, 3], scale)


@every_pair(
    # (num_heads, num_kv_heads, head_dim), rotary_dim, block_size
    shape=[
        ((4, 2, 64), 64, 16),
        ((3, 3, 80), 32, 5),
        ((6, 2, 96), 96, 16),
        ((16, 8, 128), 128, 64),
    ],
    codes=CODES,
    dtype=DTYPES,
)
def test_quantised_matches_reference(
    shape: tuple[tuple[int, int, int], int, int],
    codes: torch.dtype,
    dtype: torch.dtype,
    gpu_device: torch.device,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    heads, rotary_dim, block_size = shape
    arguments = make(gpu_device, 7, heads, rotary_dim, block_size, dtype, codes)
    wide = in_float64(arguments)
    assert_close(store(GpuBackend, arguments), store(Backend, wide))
    slots, scales = arguments["slots"], arguments["scales"]
    # Values are not computed with, so codes and scales are those of the reference, to the bit.
    values = arguments["qkv"][slots >= 0].unflatten(1, (-1, heads[2]))[:, -heads[1] :]
    expected_codes, expected_scales = quantize(values, codes)
    assert torch.equal(written_vectors(scales.values, slots), expected_scales)
    kept = written_vectors(arguments["value_cache"], slots)
    assert torch.equal(kept.view(torch.uint8), expected_codes.view(torch.uint8))
    # Keys differ by their rounding, which may turn a code into the next one.
    scale, wide_scale = (
        written_vectors(each.keys, slots).double() for each in (scales, wide["scales"])
    )
    torch.testing.assert_close(scale, wide_scale, rtol=1e-5, atol=0.0)
    kept = written_vectors(arguments["key_cache"], slots).double()
    wide_kept = written_vectors(wide["key_cache"], slots).double()
    step = torch.ones_like(kept) if codes is torch.int8 else (kept.abs() / 8).clamp(min=2.0**-9)
    assert ((kept - wide_kept).abs() <= step).all()
    assert (kept != wide_kept).double().mean() < 0.01
    assert torch.equal(scales.keys.isnan(), wide["scales"].keys.isnan())


@pytest.mark.parametrize("codes", CODES)
def test_what_cannot_be_scaled_stays_visible(codes: torch.dtype, gpu_device: torch.device) -> None:
    arguments = make(gpu_device, 6, (1, 2, 64), 32, 16, torch.float32, codes)
    arguments |= {"slots": torch.arange(6, device=gpu_device), "k_norm": None}
    keys, values = arguments["qkv"].view(6, 5, 64)[:, 1:3], arguments["qkv"].view(6, 5, 64)[:, 3:]
    for heads in (keys, values):
        heads[0, 0, 3] = torch.nan  # paired by the rotation, where it is a key
        heads[1, 1, 60] = torch.inf  # passes through
        heads[2, 0, 40] = -torch.inf
        heads[3, 0] = 0.0
        heads[4, 1] = 1e-42  # 1 / 127 of it is not a normal number
    store(GpuBackend, arguments)
    for cache, scales in (
        (arguments["key_cache"], arguments["scales"].keys),
        (arguments["value_cache"], arguments["scales"].values),
    ):
        spoilt = torch.zeros(6, 2, dtype=torch.bool, device=gpu_device)
        spoilt[0, 0] = spoilt[1, 1] = spoilt[2, 0] = True
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


@pytest.mark.parametrize("norm", ["before", "after", None])
def test_queries_alone_are_prepared_as_beside_keys_and_nothing_is_written(
    norm: str | None, gpu_device: torch.device
) -> None:
    arguments = make(gpu_device, 6, (4, 2, 32), 32, 4, torch.bfloat16)
    arguments["after_rotation"] = norm == "after"
    if norm is None:
        arguments |= {"q_norm": None, "k_norm": None}
    empty = {name: arguments[name].clone() for name in ("key_cache", "value_cache")}
    expected = {backend: store(backend, arguments | copied(empty)) for backend in (GpuBackend,)}
    layer = KVLayer(empty["key_cache"], empty["value_cache"]).without_heads
    alone = arguments | {"qkv": arguments["qkv"][:, : 4 * 32]}
    alone |= {"key_cache": layer.keys, "value_cache": layer.values}
    for backend, queries in expected.items():
        assert torch.equal(store(backend, alone), queries)
    assert all(cache.isnan().all() for cache in empty.values())


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
