"""Captured decode steps: their shapes, and which steps they take."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.bench.runs.model import BenchModel
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.cache.kv_memory import KVMemory
from pagedrun.paged.execution.decode_graphs.decode_graph import GraphShape
from pagedrun.paged.execution.decode_graphs.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.devices.device_choice import choose_device
from pagedrun.paged.execution.known_tokens import KnownTokens
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.scheduling.sequence_table import UNKNOWN_TOKEN
from tests.scheduling.made_step import MadeChunk, made_step


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
    engine = BenchModel.from_shape("tiny").engine(dtype="float32", device="cpu")
    device = replace(choose_device("cpu"), async_scheduling=True, graphs=True)
    memory = KVMemory(engine.kv_cache_specs[0], 16, 8, 0, device)
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
    assert graphs.takes(made_step(given)) == taken
    assert graphs.takes(made_step(chunk(5, 6), given)) == taken


def test_the_same_rows_go_on_and_others_are_loaded(graphs: DecodeGraphs) -> None:
    """What the device has advanced by itself must be what a load would put there."""
    known = KnownTokens(torch.tensor([9, 8]), np.array([1]))
    ids, read = graphs.run(made_step(chunk(5, 6)), known)
    assert (ids.shape, read.context_lens.tolist()) == ((1,), [6])
    graph = next(iter(graphs._graphs.values()))
    advanced = graph.buffers.integers[:3].clone()
    assert advanced[:, 0].tolist() == [int(ids[0]), 6, 7]
    graphs.forget()
    graph.buffers.load(made_step(chunk(6, 7)), KnownTokens(ids, np.array([0])))
    assert torch.equal(graph.buffers.integers[:3], advanced)
