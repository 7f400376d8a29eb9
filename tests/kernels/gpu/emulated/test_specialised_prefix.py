"""The specialised kernel, emulated: right in any order of its partitions; mistakes are found."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import tile_sweep
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.prefix_groups import PrefixGroups
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention import specialised_kernels, specialised_prefix
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_attention
from pagedrun.kernels.gpu.attention.prefix_partials import PrefixPartials
from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.gpu.tile_table import TileTable
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_shape import KernelShape
from pagedrun.paged.bench.kernels.prefix_point import PrefixPoint
from pagedrun.paged.bench.kernels.stopwatch import HostStopwatch
from pagedrun.paged.bench.model_shapes import Shape
from pagedrun.paged.execution.devices.device import Device
from tests.kernels.conftest import INTERPRETS, Context
from tests.kernels.gpu.emulated.program import EmulatedKernel
from tests.kernels.gpu.emulated.turns import COPY, Fault, Turns
from tests.kernels.gpu.prefix_rows import branching, groups_of, nested
from tests.kernels.gpu.prefix_states import SCALE, assert_right, same_states
from tests.kernels.gpu.specialised_check import check_specialised

pytestmark = pytest.mark.skipif(not INTERPRETS, reason="a GPU runs it itself")

# Of two groups that multiply and one that copies. The copies as far ahead as barriers let them be,
# with one group long before the other; or everything as late as it may be.
AHEAD: tuple[int | str, ...] = (COPY, 2, 1, 0)
AHEAD_AND_SPLIT: tuple[int | str, ...] = (2, COPY, 0, 1)
LATE: tuple[int | str, ...] = (0, 1, 2, COPY)
LATE_COPIES: tuple[int | str, ...] = (2, 1, 0, COPY)
ORDERS = [AHEAD, AHEAD_AND_SPLIT, LATE, LATE_COPIES]
EMULATED_CHIP = Chip("cuda", 90, 1, 227 << 10)  # few programs, each with many pairs


def emulate(
    monkeypatch: pytest.MonkeyPatch,
    turns: Callable[[], Turns],
    stages: int = 2,
    keys: int = 64,
    function: Any = None,
) -> None:
    """Let prefix attention take the specialised kernel, emulated, whatever the heads."""
    tiles = ((keys, 4, stages, 1), (keys, 4, stages, 1))
    names = (f"{dim}-{block}-bfloat16-bfloat16" for dim in (64, 128) for block in (64, 128))
    on = replace(EMULATED_CHIP, tiles=TileTable({"prefix": dict.fromkeys(names, tiles)}))
    monkeypatch.setattr(chip, "chip_of", lambda device: on)
    kernel = function or specialised_kernels.attend_units_specialised
    emulated = EmulatedKernel(kernel, turns)
    monkeypatch.setattr(specialised_prefix, "attend_units_specialised", emulated)


def states(
    q: Tensor,
    context: Context,
    groups: PrefixGroups,
    height: int = 128,
    at_once: int = 1,
    softcap: float | None = None,
) -> PrefixPartials:
    num_kv_heads = context.key_cache.shape[1]
    group = q.shape[1] // num_kv_heads
    work = PrefixWork.of(groups, height // group, q.device, at_once)
    layer = KVLayer(context.key_cache, context.value_cache)
    return prefix_attention(q, layer, context.block_tables, work, Softmax(SCALE, softcap))


@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_right_over_nested_prefixes(
    head_dim: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, context, _, shared = nested(head_dim, 4, 64, torch.bfloat16)
    groups = groups_of(context, shared, 64)
    emulate(monkeypatch, lambda: Turns(AHEAD))
    assert_right(states(q, context, groups, height, at_once=0), q, context, groups)


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_same_bytes_in_any_order_and_any_height(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _, groups = branching(1)
    q = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    found = []
    for order in ORDERS:
        emulate(monkeypatch, partial(Turns, order), stages)
        found.append(states(q, context, groups))
        monkeypatch.undo()
    for seed in range(2):
        emulate(monkeypatch, partial(Turns, random=Random(seed)), stages)
        found += [states(q, context, groups, height) for height in (64, 128)]
        monkeypatch.undo()
    assert_right(found[0], q, context, groups)
    assert all(same_states(each, found[0]) for each in found)


@pytest.mark.long
@pytest.mark.parametrize("stages", [2, 3, 6])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_same_bytes_in_many_orders(
    head_dim: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With partitions or copies in an order that is drawn; some tiles of rows are partly full."""
    q, context, _, shared = nested(head_dim, 8, 64, torch.bfloat16)
    groups = groups_of(context, shared, 64)
    emulate(monkeypatch, partial(Turns, AHEAD), stages)
    expected = states(q, context, groups)
    assert_right(expected, q, context, groups)
    monkeypatch.undo()
    for seed in range(12):
        order = ((), LATE, AHEAD_AND_SPLIT)[seed % 3]
        emulate(monkeypatch, partial(Turns, order, Random(seed)), stages)
        height = 64 if seed % 2 else 128
        assert same_states(states(q, context, groups, height), expected)
        monkeypatch.undo()


def test_several_pairs_and_units_in_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of several units, some of a part of one, of two kv heads, by few programs."""
    context, _, groups = branching(2)
    q = torch.randn(4, 8, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    emulate(monkeypatch, lambda: Turns(AHEAD), 3)
    merged, each = (states(q, context, groups, at_once=at_once) for at_once in (1, 0))
    assert int(merged.num_states.sum()) < int(each.num_states.sum()), "units were merged"
    for partials in (merged, each):
        assert_right(partials, q, context, groups)


@pytest.mark.parametrize(("group", "softcap"), [(1, None), (7, None), (4, 3.0)])
def test_groups_of_any_size_and_bent_scores(
    group: int, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, context, _, shared = nested(64, group, 128, torch.bfloat16)
    groups = groups_of(context, shared, 128)
    emulate(monkeypatch, lambda: Turns(LATE), keys=128)
    partials = states(q, context, groups, at_once=0, softcap=softcap)
    assert_right(partials, q, context, groups, softcap)


def test_nearly_what_the_other_tile_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """State by state. The interpreter cuts weights to bfloat16; a GPU, and this, rounds them."""
    q, context, _, shared = nested(64, 4, 64, torch.bfloat16)
    groups = groups_of(context, shared, 64)
    other = states(q, context, groups, at_once=0)
    emulate(monkeypatch, lambda: Turns(LATE_COPIES), 4)
    mine = states(q, context, groups, at_once=0)
    used = int(mine.num_states.sum())
    for name, tolerance in (("peaks", 1e-6), ("masses", 1e-6), ("totals", 8e-3)):
        a, b = (getattr(each, name)[:used] for each in (mine, other))
        assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_the_check_that_a_gpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which it is known to be right itself."""
    function = specialised_kernels.attend_units_specialised
    emulated = EmulatedKernel(function, partial(Turns, AHEAD))
    monkeypatch.setattr(specialised_prefix, "attend_units_specialised", emulated)
    check_specialised(torch.device("cpu"))


def test_a_program_without_items(monkeypatch: pytest.MonkeyPatch) -> None:
    q, context, _, shared = nested(64, 4, 64, torch.bfloat16)
    nothing = torch.zeros(0, dtype=torch.int32)
    none = torch.zeros(len(shared), dtype=torch.int32)
    start = torch.zeros(1, dtype=torch.int32)
    emulate(monkeypatch, lambda: Turns(AHEAD))
    partials = states(q, context, PrefixGroups(nothing, start, nothing, nothing, nothing, none))
    assert not partials.num_states.any()


# Each is one mistake in the kernel: what is to be replaced, by what, in which of its places.
WAIT_KEYS = "        mbarrier.wait(keys_ready.index(next_stage), next_phase)\n"
WAIT_VALUES = "        mbarrier.wait(values_ready.index(next_stage), next_phase)\n"
ARRIVE_KEYS = "        mbarrier.arrive(keys_free.index(next_stage), count=1)\n"
ARRIVE_VALUES = "        mbarrier.arrive(values_free.index(stage), count=1)\n"
FREE_KEYS = "            mbarrier.wait(keys_free.index(stage), (turn & 1) ^ 1)  # at first it is\n"
FREE_VALUES = "            mbarrier.wait(values_free.index(stage), (turn & 1) ^ 1)\n"
ISSUE = "        scores = warpgroup_mma_wait(1, deps=(scores,))\n"
FINISH = "        total, held = warpgroup_mma_wait(0, deps=(summing, held))"
MISTAKES = {
    "copies keys into a stage in use": (FREE_KEYS, ""),
    "copies values into a stage in use": (FREE_VALUES, ""),
    "waits for the other phase of free keys": (FREE_KEYS, FREE_KEYS.replace(" ^ 1", "")),
    "waits for the same phase for ever": (FREE_VALUES, FREE_VALUES.replace("turn & 1", "0")),
    "reads keys too early": (WAIT_KEYS, ""),
    "reads values too early": (WAIT_VALUES, ""),
    "reads the first values too early": (
        "    mbarrier.wait(values_ready.index(stage), phase)\n    for", "    for"
    ),
    "frees values while they are read": (FINISH, ARRIVE_VALUES + FINISH),
    "never frees keys": (ARRIVE_KEYS, ""),
    "never frees values": (ARRIVE_VALUES, ""),
    "frees keys for both groups": (
        "mbarrier.init(keys_free.index(stage), count=NUM_GROUPS)",
        "mbarrier.init(keys_free.index(stage), count=1)",
    ),
    "frees values for both groups": (
        "mbarrier.init(values_free.index(stage), count=NUM_GROUPS)",
        "mbarrier.init(values_free.index(stage), count=1)",
    ),
    "expects too few bytes": ("key_boxes.block_type.nbytes", "key_boxes.block_type.nbytes // 2"),
    "expects nothing": (
        "            mbarrier.expect(values_ready.index(stage), value_boxes.block_type.nbytes)\n",
        "",
    ),
    "takes scores that are not there": (ISSUE, ISSUE.replace("wait(1", "wait(2")),
    "does not wait for the sum": (FINISH, FINISH.replace("wait(0", "wait(1")),
    "loses count between units": ("                done += num_tiles\n", ""),
    "copies all into one stage": ("            filled += 1\n", ""),
    "stores queries without a fence": ("other=0.0))\n        fence_async_shared()", "other=0.0))"),
    "reads the wrong block": ("block * key_block + row", "(block + 1) * key_block + row"),
    "reads the wrong head": ("pair % NUM_KV_HEADS * BLOCK_SIZE", "0"),
    "attends from the rows of the other group": ("matrix_rows = PART * 64", "matrix_rows = 0"),
    "does not scale the sum": (
        "        total *= gl.convert_layout(factor, along_rows)[:, None]\n", ""
    ),
}  # fmt: skip


def mistaken(old: str, new: str) -> Any:
    """Return the kernel with a mistake, as a plain function."""
    source = inspect.getsource(specialised_kernels)
    assert old in source, "the kernel has changed: so must its mistakes"
    lines = source.replace(old, new).splitlines(keepends=True)
    space: dict[str, Any] = {}
    exec("".join(each for each in lines if not each.startswith("@gluon.jit")), space)
    return space["attend_units_specialised"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found_in_some_order(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context, _, groups = branching(2)
    q = torch.randn(4, 2 * 32, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    function = mistaken(*MISTAKES[mistake])
    shuffled = ((LATE, Random(seed)) for seed in range(9))
    for order in (*((each, None) for each in ORDERS), *shuffled):
        emulate(monkeypatch, partial(Turns, *order), function=function)
        try:
            assert_right(states(q, context, groups), q, context, groups)
        except (Fault, AssertionError) as found:
            print(f"{mistake}: {found!r:.70}")
            return
        monkeypatch.undo()
    pytest.fail("nobody noticed")


@pytest.mark.parametrize("mistake", [None, "reads the wrong head"])
def test_the_sweep_counts_it_only_where_it_is_right(
    mistake: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Shape.named("tiny").config
    shape = KernelShape.of("tiny", config, 64, num_heads=4, num_kv_heads=2, head_dim=64)
    on = chip.chip_of(torch.device("cpu"))
    (sweep,) = tile_sweep.specialised_sweeps(shape, on)
    candidate = sweep.candidates[-1]
    function = None if mistake is None else mistaken(*MISTAKES[mistake])
    emulate(monkeypatch, partial(Turns, AHEAD), function=function)
    device = Device(torch.device("cpu"), GpuBackend(), async_scheduling=False)
    contexts = KernelContexts(shape, device.torch_device, torch.bfloat16)
    tried = replace(sweep, candidates=(candidate,))
    watch = HostStopwatch(1 << 10)
    seconds = tile_sweep.timed(tried, PrefixPoint(256, 2), contexts, device, on, watch)
    assert set(seconds) == {tile_sweep.RULE} | ({str(candidate)} if mistake is None else set())


def test_the_kernel_as_a_plain_function_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the mistakes that are found above."""
    context, _, groups = branching(2)
    q = torch.randn(4, 2 * 32, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    for order in ((AHEAD, None), (LATE, Random(0))):
        emulate(monkeypatch, partial(Turns, *order), function=mistaken("", ""))
        assert_right(states(q, context, groups), q, context, groups)
        monkeypatch.undo()
