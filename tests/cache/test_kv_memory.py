"""KVMemory: its memory, and transfers that must come out as if done one at a time."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVMemory
from pagedrun.paged.execution.device import Device
from tests.support.without_float8 import refuse_float8

COPY, OUT, IN = TransferKind.COPY, TransferKind.SWAP_OUT, TransferKind.SWAP_IN
SPEC = KVCacheSpec(num_layers=2, num_kv_heads=3, head_dim=5, dtype="float32")
NUM_BLOCKS, NUM_HOST_BLOCKS, BLOCK_SIZE = 6, 4, 2


class Strict(Backend):
    """Copies of the reference that check the requirements of their docstrings."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[int]]] = []
        for name, op in (("copy_blocks", self._copy_blocks), ("swap_blocks", self._swap_blocks)):
            setattr(self, name, op)

    def _copy_blocks(self, kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
        self._note(src_ids, dst_ids)
        assert not set(src_ids.tolist()) & set(dst_ids.tolist()), "both read and written"
        Backend.copy_blocks(kv_cache, src_ids, dst_ids)

    def _swap_blocks(self, src: Tensor, dst: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
        self._note(src_ids, dst_ids)
        Backend.swap_blocks(src, dst, src_ids, dst_ids)

    def _note(self, src_ids: Tensor, dst_ids: Tensor) -> None:
        assert src_ids.dtype == dst_ids.dtype == torch.int64
        assert len(set(dst_ids.tolist())) == len(dst_ids), "written twice"
        self.calls.append((src_ids.tolist(), dst_ids.tolist()))


def on_cpu(kernels: Backend) -> Device:
    return Device(torch.device("cpu"), kernels, async_scheduling=False)


def numbered_cache(kernels: Strict | None = None) -> KVMemory:
    """A cache in which no two values are equal."""
    cache = KVMemory(SPEC, BLOCK_SIZE, NUM_BLOCKS, NUM_HOST_BLOCKS, on_cpu(kernels or Strict()))
    cache.blocks.copy_(torch.arange(cache.blocks.numel()).view_as(cache.blocks))
    host = torch.arange(cache.host_blocks.numel()).view_as(cache.host_blocks)
    cache.host_blocks.copy_(-1 - host)
    return cache


def one_at_a_time(cache: KVMemory, transfers: list[BlockTransfer]) -> None:
    for each in transfers:
        source = cache.host_blocks if each.kind is IN else cache.blocks
        target = cache.host_blocks if each.kind is OUT else cache.blocks
        target[:, :, each.target] = source[:, :, each.source].clone()


def assert_same_result(transfers: list[BlockTransfer]) -> None:
    grouped, sequential = numbered_cache(), numbered_cache()
    grouped.transfer(transfers)
    one_at_a_time(sequential, transfers)
    assert torch.equal(grouped.blocks, sequential.blocks)
    assert torch.equal(grouped.host_blocks, sequential.host_blocks)


def any_transfer() -> st.SearchStrategy[BlockTransfer]:
    pool, host = st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_HOST_BLOCKS - 1)
    return st.one_of(
        st.builds(BlockTransfer, st.just(COPY), pool, pool).filter(lambda t: t.source != t.target),
        st.builds(BlockTransfer, st.just(OUT), pool, host),
        st.builds(BlockTransfer, st.just(IN), host, pool),
    )


@given(st.lists(any_transfer(), max_size=14))
def test_grouped_transfers_are_those_done_one_at_a_time(transfers: list[BlockTransfer]) -> None:
    assert_same_result(transfers)


@pytest.mark.long
@given(st.lists(any_transfer(), max_size=40))
@settings(max_examples=3000, deadline=None)
def test_grouped_transfers_are_those_done_one_at_a_time_long(
    transfers: list[BlockTransfer],
) -> None:
    assert_same_result(transfers)


@pytest.mark.parametrize(
    "transfers",
    [
        [(OUT, 1, 0), (COPY, 2, 1)],  # freed by the swap, taken by the copy
        [(COPY, 2, 1), (OUT, 1, 0)],  # copied, then preempted
        [(OUT, 1, 0), (IN, 0, 2)],  # out and straight back in
        [(IN, 0, 1), (OUT, 2, 0)],  # the host block changes hands
        [(COPY, 1, 2), (COPY, 2, 3)],  # reads what the one before wrote
        [(COPY, 1, 2), (COPY, 3, 1)],  # writes what the one before read
        [(COPY, 1, 2), (COPY, 3, 2)],  # writes the same block again
        [(OUT, 1, 0), (OUT, 2, 0)],
        [(IN, 0, 1), (IN, 1, 1)],
        [(COPY, 1, 2), (COPY, 1, 3)],  # one source for two
    ],
)
def test_hazards_by_name(transfers: list[tuple[TransferKind, int, int]]) -> None:
    assert_same_result([BlockTransfer(*each) for each in transfers])


def test_transfers_that_do_not_meet_are_one_call() -> None:
    """Block numbers of the host and of the pool are not compared with each other."""
    kernels = Strict()
    out = [BlockTransfer(OUT, block, block) for block in range(4)]
    back = [BlockTransfer(IN, block, block) for block in range(4)]
    copies = [BlockTransfer(COPY, 0, 4), BlockTransfer(COPY, 0, 5)]
    numbered_cache(kernels).transfer([*out, *back, *copies])
    assert kernels.calls == [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 0], [4, 5]),
    ]


def test_no_transfers() -> None:
    assert_same_result([])


def test_nothing_but_the_targets_changes() -> None:
    cache, before = numbered_cache(), numbered_cache()
    cache.transfer([BlockTransfer(COPY, 4, 1)])
    others = [0, 2, 3, 4, 5]
    assert torch.equal(cache.blocks[:, :, others], before.blocks[:, :, others])
    assert torch.equal(cache.blocks[:, :, 1], before.blocks[:, :, 4])
    assert torch.equal(cache.host_blocks, before.host_blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_come_back_from_the_host_unchanged(dtype: torch.dtype) -> None:
    """NaN with a payload, infinities, denormals: swapping moves bits, not numbers."""
    cache = KVMemory(
        SPEC.stored_as(str(dtype).removeprefix("torch.")),
        BLOCK_SIZE,
        NUM_BLOCKS,
        NUM_HOST_BLOCKS,
        on_cpu(Backend()),
    )
    integers = torch.int32 if dtype is torch.float32 else torch.int16
    bits = cache.blocks.view(integers)
    limits = torch.iinfo(integers)
    bits.random_(limits.min, limits.max, generator=torch.Generator().manual_seed(0))
    before = bits.clone()
    cache.transfer([BlockTransfer(OUT, 1, 3), BlockTransfer(OUT, 2, 0)])
    bits[:, :, 1:3] = 0
    cache.transfer([BlockTransfer(IN, 3, 1), BlockTransfer(IN, 0, 2)])
    assert torch.equal(bits, before)


def test_sizes() -> None:
    assert SPEC.bytes_per_token == 2 * 2 * 3 * 5 * 4
    assert SPEC.stored_as("bfloat16").bytes_per_token == SPEC.bytes_per_token // 2
    cache = numbered_cache()
    assert cache.num_bytes == NUM_BLOCKS * BLOCK_SIZE * SPEC.bytes_per_token
    assert cache.blocks.shape == (2, 2, NUM_BLOCKS, 3, BLOCK_SIZE, 5)
    assert cache.host_blocks.shape == (2, 2, NUM_HOST_BLOCKS, 3, BLOCK_SIZE, 5)


def test_a_layer_is_a_view_of_the_pool() -> None:
    cache = numbered_cache()
    keys, values, scales = cache.layer(1)
    assert scales is None
    assert keys.shape == values.shape == (NUM_BLOCKS, 3, BLOCK_SIZE, 5)
    keys[2] = 7.0
    values[3] = 8.0
    assert (cache.blocks[1, 0, 2] == 7.0).all()
    assert (cache.blocks[1, 1, 3] == 8.0).all()
    assert keys.is_contiguous()  # the kernels read it as one run


@pytest.mark.parametrize("kernels", [CpuBackend(), GpuBackend()], ids=lambda each: each.name)
@pytest.mark.parametrize("codes", ["int8", "float8_e4m3fn"])
def test_codes_move_with_their_scales(
    codes: str, kernels: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block with another's scales would read as other numbers. GPUs before sm_89 have no float8;
    their kernels are interpreted here."""
    if isinstance(kernels, GpuBackend):
        if torch.cuda.is_available():
            pytest.skip("nothing is interpreted where there is a GPU")
        refuse_float8(monkeypatch)
    spec = replace(SPEC, head_dim=128, dtype=codes)
    cache = KVMemory(spec, BLOCK_SIZE, NUM_BLOCKS, NUM_HOST_BLOCKS, on_cpu(kernels))
    assert cache.num_bytes == NUM_BLOCKS * cache.bytes_per_block
    assert 1.9 * cache.bytes_per_block < spec.stored_as("bfloat16").bytes_per_token * BLOCK_SIZE
    generator = torch.Generator().manual_seed(0)
    for memory in chain(*cache._memories):
        bits = torch.randint(0, 120, memory.view(torch.uint8).shape, generator=generator)
        memory.view(torch.uint8).copy_(bits)
    before = cache.read(range(NUM_BLOCKS))
    assert [each.shape[-1] for each in before] == [128, 1]  # codes, and a scale for each head
    cache.transfer(
        BlockTransfer(*each) for each in ((OUT, 3, 1), (COPY, 5, 3), (OUT, 0, 2), (IN, 1, 0))
    )
    order = [3, 1, 2, 5, 4, 5]  # what each block was before
    for after, old in zip(cache.read(range(NUM_BLOCKS)), before, strict=True):
        assert torch.equal(after.view(torch.uint8), old.view(torch.uint8)[:, :, order])


def test_a_cache_without_host_blocks() -> None:
    cache = KVMemory(SPEC, BLOCK_SIZE, NUM_BLOCKS, 0, on_cpu(Backend()))
    assert cache.host_blocks.nbytes == 0
    cache.transfer([])
