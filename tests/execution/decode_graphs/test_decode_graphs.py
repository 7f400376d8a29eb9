"""Captured decode steps: their shapes, and which steps they take."""

from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory
from pagedrun.paged.execution.decode_buffers import GraphShape
from pagedrun.paged.execution.decode_graphs import (
    CAPTURE_COST,
    LAUNCHED_COST,
    DecodeGraphs,
    Replayed,
)
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.step_result import InFlight, StepResult
from pagedrun.paged.scheduling.sequence_table import UNKNOWN_TOKEN
from pagedrun.paged.scheduling.step_input import StepInput
from tests.support.made_step import MadeChunk, made_step
from tests.support.tiny_models import tiny_engine


@given(
    num_rows=st.integers(1, 2000),
    num_tokens=st.integers(1, 200_000),
    num_partitions=st.integers(0, 2000),
    block_size=st.sampled_from([1, 13, 16, 64, 256]),
)
def test_a_shape_holds_what_it_is_asked_for(
    num_rows: int, num_tokens: int, num_partitions: int, block_size: int
) -> None:
    shape = GraphShape.holding(num_rows, num_tokens, num_partitions, block_size)
    assert num_rows <= shape.num_rows <= max(2 * num_rows, num_rows + 63)
    assert shape.width * block_size >= num_tokens
    assert shape.num_shared_partitions >= num_rows * num_partitions
    assert (shape.num_shared_partitions > 0) == (num_partitions > 0)


def test_rows_without_filters_have_steps_of_their_own() -> None:
    """Two launches fewer; but a captured step without them must not take rows that filter."""
    plain, filtered = (GraphShape.holding(4, 100, 0, 16, filtered=each) for each in (False, True))
    assert filtered.holds(plain)
    assert not plain.holds(filtered)
    draws = made_step(MadeChunk([1, 2, 3], [4], [0], 3, 4)).draws
    cases: list[tuple[dict[str, float], bool]] = [
        ({"temperature": 0.0}, False),
        ({"temperature": 1.0}, False),
        ({"temperature": 1.0, "top_p": 0.9}, True),
        ({"temperature": 1.0, "top_k": 3}, True),
        ({"temperature": 1.0, "min_p": 0.1}, True),
        ({"temperature": 0.0, "top_p": 0.9}, False),
    ]
    for changes, expected in cases:
        values: Any = {
            name: np.full_like(getattr(draws, name), value) for name, value in changes.items()
        }
        assert replace(draws, **values).has_filters(1e-5) == expected, changes


def test_a_run_has_few_shapes() -> None:
    """Every batch that 1,024 rows of up to 2,048 tokens pass through on their way to none."""
    shapes = {
        GraphShape.holding(rows, tokens, 32, 64)
        for rows in range(1, 1025)
        for tokens in (100, 700, 2048)
    }
    assert len(shapes) == len({shape.num_rows for shape in shapes}) == 25


@pytest.fixture
def graphs() -> DecodeGraphs:
    engine = tiny_engine(dtype="float32", device="cpu")
    device = replace(choose_device("cpu"), async_scheduling=True, graphs=True)
    memory = KVMemory(engine.kv_cache_specs[0], 16, 12, 0, device)
    memory.blocks.zero_()  # a prompt that nobody computed: whatever the memory held may be NaN
    cache, sampler = KVCache([memory]), Sampler([1], device)
    model = engine.loaded.model
    return DecodeGraphs(model, cache, sampler, device, shared_prefix_attention=True, capture=False)


def chunk(start: int, end: int, store_from: int | None = None, **params: Any) -> MadeChunk:
    """Return a chunk of a sequence of 5 prompt tokens and as many generated ones as it needs."""
    output = [7] * (end - 6) + [UNKNOWN_TOKEN] if end > 5 else []
    given = (("max_tokens", 20), *params.items())
    return MadeChunk((1, 2, 3, 4, 5), output, [3], start, end, store_from, params=given)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (chunk(5, 6), True),
        (chunk(8, 9), True),
        (chunk(4, 5), False),  # the last token of a prompt
        (chunk(4, 6), False),  # and with the token behind it
        (chunk(7, 9), False),  # generated tokens, computed again after a preemption
        (chunk(8, 9, store_from=9), False),  # a token that is in the cache already
        (chunk(8, 9, min_tokens=4), True),
        (chunk(8, 9, min_tokens=5), True),  # the next one may not be a stop token
    ],
)
def test_which_steps_are_taken(given: MadeChunk, taken: bool, graphs: DecodeGraphs) -> None:
    assert graphs.is_decoding(made_step(given)).tolist() == [taken]
    assert graphs.is_decoding(made_step(chunk(5, 6), given)).tolist() == [True, taken]


def before(*tokens: int) -> InFlight:
    """A step that has drawn these tokens; nothing else is known of it."""
    nothing: Any = None
    result = StepResult(torch.tensor(tokens))
    return InFlight(result, nothing, nothing, nothing, nothing, nothing, nothing, nothing)


def going_on(*chunks: MadeChunk) -> StepInput:
    """The step of chunks whose unknown tokens are those drawn before, in order."""
    step = made_step(*chunks)
    return replace(step, sources=np.arange(len(step.sources)))


TIMES = -(-CAPTURE_COST // LAUNCHED_COST)  # that a step is launched, but the last


def replayed(graphs: DecodeGraphs, step: StepInput, *tokens: int) -> Replayed:
    """Return the first step that is replayed."""
    ran = [graphs.run(step, before(*tokens)) for _ in range(TIMES)]
    assert ran[:-1] == [None] * (TIMES - 1)
    assert ran[-1] is not None
    return ran[-1]


def test_a_shape_is_captured_when_launches_have_cost_as_much(graphs: DecodeGraphs) -> None:
    replayed(graphs, going_on(chunk(6, 7)), 9)
    assert len(graphs.shapes) == 1


def test_a_row_without_a_sequence_writes_no_keys(graphs: DecodeGraphs) -> None:
    """Its table names block 0, which is that of another sequence."""
    replayed(graphs, going_on(*[chunk(6, 7)] * 3), 9, 9, 9)
    assert [shape.num_rows for shape in graphs.shapes] == [4]
    blocks = graphs._cache.groups[0].blocks
    assert blocks[:, :, 3].any()
    assert not blocks[:, :, 0].any()


def behind_prefix(end: int, own: int) -> MadeChunk:
    """Return the newest token of a row that reads a partition of 8 blocks with others."""
    output = [7] * (end - PARTITION_TOKENS - 1) + [UNKNOWN_TOKEN]
    return MadeChunk(
        [1] * PARTITION_TOKENS, output, [*range(8), own], end - 1, end,
        num_read_once_tokens=PARTITION_TOKENS, params=(("max_tokens", 20),),
    )  # fmt: skip


def test_a_row_that_comes_reads_with_those_of_its_prefix(graphs: DecodeGraphs) -> None:
    end = PARTITION_TOKENS + 2
    found = replayed(graphs, going_on(*[behind_prefix(end, own) for own in (8, 9, 10)]), 9, 9, 9)
    read, apart = found.read.tokens_read(None)
    assert (read, apart) == (3 * end - 2 * PARTITION_TOKENS, 3 * end)
    rows = [*(behind_prefix(end + 1, own) for own in (8, 9, 10)), behind_prefix(end, 11)]
    later = graphs.run(going_on(*rows), before(9, 9, 9, 9))
    assert later is not None
    assert len(graphs.shapes) == 1
    read, apart = later.read.tokens_read(None)
    assert (read, apart) == (4 * end + 3 - 3 * PARTITION_TOKENS, 4 * end + 3)


def test_steps_of_other_runs_capture_nothing(graphs: DecodeGraphs) -> None:
    """Numbers of rows at the beginning and the end of a run occur once in each."""
    for _ in range(2 * CAPTURE_COST):
        graphs.begin_run()
        assert graphs.run(going_on(chunk(6, 7)), before(9)) is None
    assert not graphs.shapes


def test_few_rows_stay_in_a_large_graph_for_a_while(graphs: DecodeGraphs) -> None:
    many, few = (going_on(*[chunk(6, 7)] * count) for count in (16, 2))
    replayed(graphs, many, *[9] * 16)
    for _ in range(CAPTURE_COST - 1):
        assert graphs.run(few, before(9, 9)) is not None
        assert [shape.num_rows for shape in graphs.shapes] == [16]
    assert graphs.run(few, before(9, 9)) is not None
    assert [shape.num_rows for shape in graphs.shapes] == [16, 2]


class Growing(Device):
    """A device of which each look finds 10 bytes more in use."""

    __slots__ = ()
    looks: ClassVar[list[int]] = []

    def bytes_in_use(self) -> int:
        self.looks.append(0)
        return 10 * len(self.looks)


def test_no_more_is_captured_than_there_is_room_for(graphs: DecodeGraphs) -> None:
    """What is captured is measured; other steps are then computed kernel by kernel."""
    host = graphs._device
    graphs._device = Growing(*(getattr(host, each.name) for each in fields(Device)))
    graphs._room = 20

    def step(num_rows: int) -> StepInput:
        return going_on(*[chunk(6, 7)] * num_rows)

    for num_rows in (1, 4, 16):
        ran = [graphs.run(step(num_rows), before(*[9] * num_rows)) for _ in range(TIMES + 1)]
        assert (ran[-1] is None) == (num_rows == 16)
    assert [shape.num_rows for shape in graphs.shapes] == [1, 4]
    assert graphs.num_bytes == 20
    graphs.release()
    assert graphs.num_bytes == 0
    assert graphs.run(step(16), before(*[9] * 16)) is not None


def test_prompts_are_left_for_others_to_compute(graphs: DecodeGraphs) -> None:
    found = replayed(graphs, going_on(chunk(6, 7), chunk(0, 4), chunk(7, 8)), 9, 8)
    assert found.rest is not None
    assert found.rest.rows.tolist() == [1]
    assert found.read.context_lens.tolist() == [7, 8]
    graph = next(iter(graphs._graphs.values()))
    assert graph.buffers.integers[1:3, found.rows].tolist() == [[7, 8], [8, 9]]


def test_generated_tokens_computed_again_keep_a_step_whole(graphs: DecodeGraphs) -> None:
    """They read prefixes with those that decode, and are counted so in the plan."""
    step = going_on(chunk(6, 7), chunk(3, 7))
    assert [graphs.run(step, before(9, 8)) for _ in range(TIMES)] == [None] * TIMES


def test_what_the_device_has_advanced_is_what_a_start_would_put_there(graphs: DecodeGraphs) -> None:
    first = replayed(graphs, going_on(chunk(5, 6)), 8)
    graph = next(iter(graphs._graphs.values()))
    advanced = graph.buffers.integers.clone()
    token = int(first.ids[first.rows[0]])
    assert advanced[:3, first.rows[0]].tolist() == [token, 6, 7]
    graph.forget()
    again = graph._rows.assign(going_on(chunk(6, 7)), [1], reads_together=True)
    graph.buffers.update(again[1], torch.tensor([token]))
    assert torch.equal(graph.buffers.integers, advanced)
