"""What steps that decode are reckoned to take of a GPU's memory, and what pools leave for it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.models.network import AttentionHeads
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.sizing import (
    DecodeMemory,
    leave_for_decoding,
    most_state_bytes,
    state_bytes,
)
from pagedrun.paged.values.engine_config import EngineConfig
from tests.support.tiny_models import published_config

GIB = 2**30
HEADS = AttentionHeads(num_heads=16, num_kv_heads=8, head_dim=128, window=None)
NETWORK = published_config("qwen3-0.6b", num_hidden_layers=2).network
SPECS = NETWORK.kv_cache_specs("bfloat16")
BUDGET = MemoryBudget(24 * GIB, 20 * GIB, 18 * GIB, 0, is_filled=True)


def config(**settings: int | bool) -> EngineConfig:
    return EngineConfig(model="none", block_size=64, **settings)  # type: ignore[arg-type]


def left(budget: MemoryBudget = BUDGET, longest: int = 4096, **settings: int) -> MemoryBudget:
    asked = config(**settings)
    return leave_for_decoding(budget, NETWORK, "bfloat16", asked, SPECS, longest)


@given(
    pool_tokens=st.integers(1, 500_000),
    longest=st.integers(1, 100_000),
    num_rows=st.integers(1, 1024),
    shared=st.integers(0, 100_000),
)
def test_no_batch_that_a_pool_holds_leaves_more(
    pool_tokens: int, longest: int, num_rows: int, shared: int
) -> None:
    """Rows that share what they can, and have a block each besides."""
    shared = min(shared, longest, pool_tokens)
    num_rows = max(1, min(num_rows, (pool_tokens - shared) // 64))
    most = most_state_bytes([HEADS], config(max_num_seqs=1024), pool_tokens, longest)
    assert state_bytes(HEADS, num_rows, shared) <= most


def test_states_by_hand() -> None:
    """A thousand rows that read 4,096 tokens together, each its last unit besides; and few rows
    whose own tokens are split."""
    one = 16 * 130 * 4
    assert state_bytes(HEADS, 1024, 4096) == (1024 * 5 + 76 * 8) * one
    windowed = replace(HEADS, window=1000)
    assert state_bytes(windowed, 1024, 4096) == 76 * 3 * one
    assert state_bytes(replace(HEADS, head_dim=512), 10, 4096) == (10 * 5 + 10 * 8) * 16 * 514 * 4


def test_a_pool_leaves_room_for_graphs_and_states() -> None:
    found = left(max_num_seqs=256)
    assert found.pool == BUDGET.pool - found.decode_states - found.graphs
    assert found.available == BUDGET.available  # a size that is given is taken
    assert found.decode_states > 0
    # The logits of a captured step, as they are and in float32, are there beside an eager one's.
    assert found.graphs > 256 * NETWORK.vocab_size * (2 + 4) + found.decode_states
    eager = left(max_num_seqs=256, enforce_eager=True)
    assert (eager.graphs, eager.decode_states) == (0, found.decode_states)
    longer = left(max_num_seqs=256, longest=40_000)
    assert longer.decode_states > found.decode_states


def test_a_processor_leaves_nothing() -> None:
    host = MemoryBudget(24 * GIB, 20 * GIB, 16 * GIB)
    assert left(host) == host


@pytest.mark.parametrize("pool", [0, 1000, 50_000_000])
def test_half_of_a_small_pool_stays(pool: int) -> None:
    found = left(replace(BUDGET, pool=pool), max_num_seqs=1024)
    assert found.pool >= pool // 2
    assert found.pool + found.graphs + found.decode_states == pool


def test_models_of_other_code_have_no_graphs() -> None:
    recurrent = published_config("qwen3-next-80b-a3b", num_hidden_layers=4).network
    specs = recurrent.kv_cache_specs("bfloat16")
    asked = config(max_num_seqs=64)
    found = DecodeMemory.of(recurrent, "bfloat16", asked, BUDGET, specs, 4096)
    assert found.graphs == 0
    assert found.states > 0
