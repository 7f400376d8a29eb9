"""StateCache: a slot in each recurrent layer, and moves that no other slot notices."""

import weakref

import pytest
import torch

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateArray, StateLayerIndex, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, StateCache
from pagedrun.paged.execution.device import Device

SPEC = StateSpec((StateArray("conv", (3, 5), "bfloat16"), StateArray("sums", (2, 4, 4), "float32")))
DEVICE = Device(torch.device("cpu"), Backend(), async_scheduling=False)


def made() -> StateCache:
    """Three layers, four slots, two on the host; no two values of a layer are equal."""
    states = StateCache([SPEC] * 3, 4, 2, DEVICE)
    for layer in range(3):
        for array in states.layer(layer):
            array.copy_(torch.arange(array.numel()).view_as(array) + 1000 * layer)
    return states


def test_a_layer_has_the_arrays_of_its_spec() -> None:
    cache = KVCache([KVMemory(KVCacheSpec(1, 1, 4, "float32"), 4, 2, 0, DEVICE)], made())
    conv, sums = cache.state(StateLayerIndex(2))
    assert (conv.shape, conv.dtype) == ((4, 3, 5), torch.bfloat16)
    assert (sums.shape, sums.dtype) == ((4, 2, 4, 4), torch.float32)
    assert isinstance(cache.states, StateCache)
    assert cache.states.num_bytes == 4 * 3 * SPEC.num_bytes == 4 * 3 * (30 + 128)
    assert (cache.states.num_blocks, cache.states.num_host_blocks) == (4, 2)


def test_a_slot_goes_to_the_host_and_comes_back_to_another() -> None:
    before = made()
    cache = KVCache([KVMemory(KVCacheSpec(1, 1, 4, "float32"), 4, 4, 2, DEVICE)], made())
    assert isinstance(cache.states, StateCache)
    # Memory as it comes may hold NaN, which is unequal to itself.
    blocks = cache.groups[0].blocks.random_().clone()
    cache.transfer(
        [
            BlockTransfer(TransferKind.SWAP_OUT, 1, 0, group=1),
            BlockTransfer(TransferKind.COPY, 3, 1, group=1),
            BlockTransfer(TransferKind.SWAP_IN, 0, 2, group=1),
        ]
    )
    for layer in range(3):
        for old, new in zip(before.layer(layer), cache.states.layer(layer), strict=True):
            assert torch.equal(new, old[[0, 3, 1, 3]])
    assert torch.equal(cache.groups[0].blocks, blocks)


def test_what_was_read_is_loaded_again() -> None:
    states = made()
    read = states.read([3, 1])
    assert [(tuple(each.shape), each.dtype) for each in read] == states.shapes(2)
    states.transfer([BlockTransfer(TransferKind.LOAD, states.stage(read, 1), 0)])
    for layer in range(3):
        for old, new in zip(made().layer(layer), states.layer(layer), strict=True):
            assert torch.equal(new, old[[1, 1, 2, 3]])


def test_what_was_loaded_is_freed() -> None:
    states = made()
    read = states.read([3, 1])
    held = [weakref.ref(each) for each in read]
    load = BlockTransfer(TransferKind.LOAD, states.stage(read, 1), 0)
    del read
    assert all(each() is not None for each in held)
    states.transfer([load])
    assert [each() for each in held] == [None, None]


def test_a_state_of_transformers_grows_with_its_tokens() -> None:
    spec = StateSpec((StateArray("sums", (2, 3), "float32"),), bytes_per_token=10, is_opaque=True)
    assert (spec.num_bytes_behind(0), spec.num_bytes_behind(7)) == (2 * 3 * 4, 2 * 3 * 4 + 7 * 10)
    assert SPEC.num_bytes_behind(7) == SPEC.num_bytes


def test_layers_whose_states_differ_are_refused() -> None:
    other = StateSpec(SPEC.arrays[:1])
    with pytest.raises(ValueError, match="states differ"):
        StateCache([SPEC, other], 4, 0, DEVICE)
