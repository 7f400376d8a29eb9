from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer, KVScales
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.reference.kv_cache import quantize
from tests.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
CODES = [torch.int8, torch.float8_e4m3fn]


def make(
    num_tokens: int, heads: tuple[int, int, int], rotary_dim: int, block_size: int, dtype: Any
) -> dict[str, Any]:
    torch.manual_seed(0)
    num_heads, num_kv_heads, head_dim = heads
    angles = torch.rand(500, rotary_dim // 2) * 6
    num_blocks = -(-num_tokens // block_size) + 2
    caches = [
        torch.full((num_blocks, num_kv_heads, block_size, head_dim), torch.nan, dtype=dtype)
        for _ in range(2)
    ]
    slots = torch.randperm(num_blocks * block_size)[:num_tokens]
    slots[::3] = -1
    return {
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


def store(backend: Any, arguments: dict[str, Any]) -> Tensor:
    """Call `rotary_store` with a layer made of the caches, and norms of what is there of them."""
    given = dict(arguments)
    layer = KVLayer(given.pop("key_cache"), given.pop("value_cache"), given.pop("scales", None))
    q_norm, k_norm, eps = (given.pop(name) for name in ("q_norm", "k_norm", "eps"))
    after = given.pop("after_rotation", False)
    norms = None if k_norm is None else HeadNorms(q_norm, k_norm, eps, after)
    queries: Tensor = backend.rotary_store(**given, layer=layer, norms=norms)
    return queries


def quantised(arguments: dict[str, Any], codes: torch.dtype) -> dict[str, Any]:
    """Return the arguments with caches of codes, and scales of 7, that nothing is written to."""
    shape = arguments["key_cache"].shape
    caches = (torch.full(shape, 5.0).to(codes) for _ in range(2))
    dtype = torch.promote_types(arguments["qkv"].dtype, torch.float32)
    scales = KVScales(*(torch.full(shape[:3], 7.0, dtype=dtype) for _ in range(2)))
    return arguments | dict(zip(("key_cache", "value_cache"), caches, strict=True), scales=scales)


def written(cache: Tensor, slots: Tensor) -> Tensor:
    """Return what lies at the slots that were written: [num_written, num_kv_heads, ...]."""
    slots, block_size = slots[slots >= 0], cache.shape[2]
    return cache[slots // block_size, :, slots % block_size]


def in_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["before", "after", None])
@pytest.mark.parametrize(
    ("num_tokens", "heads", "rotary_dim", "block_size"),
    [
        (1, (2, 2, 16), 16, 16),
        (3, (4, 2, 80), 32, 5),
        (63, (7, 1, 128), 128, 1),
        (130, (8, 2, 64), 64, 64),
    ],
)
def test_matches_reference(
    num_tokens: int,
    heads: tuple[int, int, int],
    rotary_dim: int,
    block_size: int,
    norm: str | None,
    dtype: torch.dtype,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    arguments = make(num_tokens, heads, rotary_dim, block_size, dtype)
    arguments["after_rotation"] = norm == "after"
    if norm is None:
        arguments |= {"q_norm": None, "k_norm": None}
    wide = in_float64(arguments)
    expected = store(Backend, wide)
    assert_close(store(CpuBackend, arguments), expected)
    for name in ("key_cache", "value_cache"):
        # Slots that nothing went to are untouched in both.
        assert torch.equal(arguments[name].isnan(), wide[name].isnan())
        assert_close(arguments[name].nan_to_num(7.0), wide[name].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_arrive_bit_for_bit(dtype: torch.dtype) -> None:
    arguments = make(20, (2, 1, 32), 32, 4, dtype)
    store(CpuBackend, arguments)
    values = arguments["qkv"][:, -32:]
    written = arguments["slots"] >= 0
    slots = arguments["slots"][written]
    assert torch.equal(arguments["value_cache"][slots // 4, 0, slots % 4], values[written])


@pytest.mark.parametrize("dtype", DTYPES)
def test_token_alone_equals_token_in_batch(dtype: torch.dtype) -> None:
    arguments = make(150, (8, 2, 64), 64, 16, dtype)
    together = store(CpuBackend, arguments)
    keys = arguments["key_cache"].clone()
    arguments["key_cache"].fill_(torch.nan)
    for token in range(150):
        one = slice(token, token + 1)
        part = {name: arguments[name][one] for name in ("qkv", "positions", "slots")}
        assert torch.equal(store(CpuBackend, arguments | part), together[one])
    assert torch.equal(arguments["key_cache"].nan_to_num(7.0), keys.nan_to_num(7.0))


def test_writes_into_a_view_of_one_layer() -> None:
    arguments = make(9, (2, 1, 16), 16, 4, torch.float32)
    layers = torch.full((3, 2, *arguments["key_cache"].shape), torch.nan)
    arguments |= {"key_cache": layers[1, 0], "value_cache": layers[1, 1]}
    store(CpuBackend, arguments)
    assert layers[[0, 2]].isnan().all()
    assert not layers[1].isnan().all()


def test_slots_beyond_32_bits_of_elements() -> None:
    # 2^31 elements lie before the slot: an int32 offset would wrap.
    block_elements = 64 * 256
    num_blocks = 2**31 // block_elements + 2
    shape = (num_blocks, 1, 64, 256)
    key_cache = torch.empty(shape, dtype=torch.bfloat16)  # never touched pages cost nothing
    arguments = make(1, (1, 1, 256), 256, 64, torch.bfloat16)
    value_cache = torch.empty(shape, dtype=torch.bfloat16)
    slots = torch.tensor([(num_blocks - 1) * 64 + 3])
    caches = {"key_cache": key_cache, "value_cache": value_cache}
    store(CpuBackend, arguments | caches | {"slots": slots})
    assert torch.equal(value_cache[-1, 0, 3], arguments["qkv"][0, -256:])


@pytest.mark.parametrize("norm", ["before", "after", None])
def test_queries_alone_are_prepared_as_beside_keys_and_nothing_is_written(
    norm: str | None,
) -> None:
    arguments = make(6, (4, 2, 32), 32, 4, torch.bfloat16)
    arguments["after_rotation"] = norm == "after"
    if norm is None:
        arguments |= {"q_norm": None, "k_norm": None}
    empty = {name: arguments[name].clone() for name in ("key_cache", "value_cache")}
    expected = {
        backend: store(backend, arguments | copied(empty)) for backend in (Backend, CpuBackend)
    }
    layer = KVLayer(empty["key_cache"], empty["value_cache"]).without_heads
    alone = arguments | {"qkv": arguments["qkv"][:, : 4 * 32]}
    alone |= {"key_cache": layer.keys, "value_cache": layer.values}
    for backend, queries in expected.items():
        assert torch.equal(store(backend, alone), queries)
    assert all(cache.isnan().all() for cache in empty.values())


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


@every_pair(
    # (num_heads, num_kv_heads, head_dim), rotary_dim, block_size
    shape=[((4, 2, 64), 64, 16), ((3, 3, 80), 32, 5), ((16, 8, 128), 128, 64)],
    codes=CODES,
    dtype=DTYPES,
    norm=["before", "after", None],
)
def test_codes_and_scales_are_those_of_the_reference(
    shape: tuple[tuple[int, int, int], int, int],
    codes: torch.dtype,
    dtype: torch.dtype,
    norm: str | None,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    heads, rotary_dim, block_size = shape
    arguments = quantised(make(20, heads, rotary_dim, block_size, dtype), codes)
    arguments["after_rotation"] = norm == "after"
    if norm is None:
        arguments |= {"q_norm": None, "k_norm": None}
    exact = quantised(in_float64(arguments), codes)
    assert_close(store(CpuBackend, arguments), store(Backend, exact))
    slots, scales = arguments["slots"], arguments["scales"]
    # Values are not computed with: to the bit.
    values = arguments["qkv"][slots >= 0].unflatten(1, (-1, heads[2]))[:, -heads[1] :]
    expected, expected_scales = quantize(values, codes)
    assert torch.equal(written(scales.values, slots), expected_scales)
    got = written(arguments["value_cache"], slots)
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    # Keys differ by their rounding, which may turn a code into the next one.
    got, near = (written(each["key_cache"], slots).double() for each in (arguments, exact))
    step = torch.ones_like(got) if codes is torch.int8 else (got.abs() / 8).clamp(min=2.0**-9)
    assert ((got - near).abs() <= step).all()
    assert (got != near).double().mean() < 0.01
    got, near = (written(each["scales"].keys, slots).double() for each in (arguments, exact))
    torch.testing.assert_close(got, near, rtol=1e-5, atol=0.0)
    # Slots that nothing went to are untouched.
    for name, kept in (("key_cache", scales.keys), ("value_cache", scales.values)):
        is_free = torch.ones(kept.shape[0] * block_size, dtype=torch.bool)
        is_free[slots[slots >= 0]] = False
        free = arguments[name].float().transpose(1, 2).flatten(0, 1)[is_free]
        assert (free == 5).all()
        assert (kept.transpose(1, 2).flatten(0, 1)[is_free] == 7).all()


@pytest.mark.parametrize("codes", CODES)
def test_heads_that_cannot_be_scaled_stay_visible_and_every_code_is_rounded_as_torch_does(
    codes: torch.dtype,
) -> None:
    """By values, which pass through: all magnitudes down to numbers that are not normal."""
    torch.manual_seed(0)
    values = torch.randn(400, 64) * torch.randn(400, 64).mul(6).exp()
    values[0, 3], values[1, 60], values[2, 40] = torch.nan, torch.inf, -torch.inf
    values[3], values[4] = 0.0, 1e-42
    values[5] = torch.arange(-32, 32) + 0.5  # halfway between codes of int8
    values[5, 0] = 127
    qkv = torch.cat([torch.zeros(400, 128), values], dim=1)
    plain = make(400, (1, 1, 64), 64, 16, torch.float32)
    arguments = quantised(plain | {"slots": torch.arange(400), "qkv": qkv}, codes)
    store(CpuBackend, arguments)
    expected, scales = quantize(values, codes)
    got = written(arguments["value_cache"], arguments["slots"])[:, 0]
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    kept = written(arguments["scales"].values, arguments["slots"])[:, 0]
    assert torch.equal(kept.isnan(), torch.arange(400) < 3)
    assert torch.equal(kept[3:], scales[3:])


@pytest.mark.parametrize("codes", CODES)
def test_codes_of_a_token_do_not_depend_on_its_batch(codes: torch.dtype) -> None:
    arguments = quantised(make(40, (8, 2, 64), 64, 16, torch.bfloat16), codes)
    store(CpuBackend, arguments)
    alone = quantised(arguments, codes)
    for token in range(40):
        one = slice(token, token + 1)
        store(
            CpuBackend,
            alone | {name: arguments[name][one] for name in ("qkv", "positions", "slots")},
        )
    for name in ("key_cache", "value_cache"):
        assert torch.equal(alone[name].view(torch.uint8), arguments[name].view(torch.uint8))
    assert torch.equal(alone["scales"].keys, arguments["scales"].keys)
    assert torch.equal(alone["scales"].values, arguments["scales"].values)
