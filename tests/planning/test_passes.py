"""Sizes and forecasts of passes over streamed weights."""

from pathlib import Path

import pytest

from pagedrun.paged.metrics.report_sections import WeightFigures, weight_figures
from pagedrun.paged.models.streaming.residency import PassSpeeds, Residency
from pagedrun.paged.planning.memory import memory_for_weights
from pagedrun.paged.planning.passes import (
    MAX_STEP_S,
    MAX_STEP_TOKENS,
    MIN_STEP_TOKENS,
    NUM_SEQS,
    UNKNOWN_STEP_TOKENS,
    PassCosts,
    fitted_to_pass,
)
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.tiny_models import published_config

GIB = 2**30
CONFIG = EngineConfig.fitting(model=Path("model"))
# Eight entries of a GiB, of which three share the ring.
RESIDENCY = Residency.within([GIB] * 8, 3 * GIB)
assert RESIDENCY is not None


def costs(bytes_per_s: float, tokens_per_s: float | None) -> PassCosts:
    assert RESIDENCY is not None
    return PassCosts(RESIDENCY, PassSpeeds(bytes_per_s, tokens_per_s), hidden_bytes=4096)


def step_tokens(found: PassCosts, host_bytes: int = 2**40) -> int:
    return found.fitted(CONFIG, host_bytes).max_num_batched_tokens


def test_a_slow_disk_makes_large_steps() -> None:
    # 8 s of reading, at 500 tokens/s: a step computes for eight times as long.
    assert step_tokens(costs(GIB, 500.0)) == 32 * 1024
    assert step_tokens(costs(100 * GIB, 500.0)) == MIN_STEP_TOKENS
    assert step_tokens(costs(GIB / 100, 500.0)) == MAX_STEP_TOKENS


def test_steps_do_not_outlast_a_watchdog() -> None:
    tokens_per_s = 20.0
    assert step_tokens(costs(GIB / 50, tokens_per_s)) <= MAX_STEP_S * tokens_per_s + 1024


def test_hidden_states_take_a_small_part_of_the_memory() -> None:
    assert step_tokens(costs(GIB, 500.0), 2 * GIB) == 2 * GIB // 32 // 4096
    assert step_tokens(costs(GIB, 500.0), 2**20) == MIN_STEP_TOKENS


def test_unknown_speeds_and_settings_that_were_given() -> None:
    assert RESIDENCY is not None
    unknown = PassCosts(RESIDENCY, None, 4096)
    assert step_tokens(unknown) == UNKNOWN_STEP_TOKENS
    assert step_tokens(costs(GIB, None)) == UNKNOWN_STEP_TOKENS
    assert unknown.fitted(CONFIG, 2**40).max_num_seqs == NUM_SEQS
    given = EngineConfig.fitting(model=Path("model"), max_num_seqs=7, max_num_batched_tokens=99)
    assert unknown.fitted(given, 2**40) == given


def weights() -> WeightFigures:
    return weight_figures(1000, None, 8 * GIB, (0, 0, 0))


@pytest.mark.parametrize(
    ("tokens", "is_full", "limit", "run_s"),
    [
        (8000, False, "arithmetic", 160.0),
        (800, False, "disk", 80.0),
        (800, True, "KV memory", 80.0),
    ],
)
def test_a_step_takes_as_long_as_the_slower_of_both(
    tokens: int, is_full: bool, limit: str, run_s: float
) -> None:
    found, figures = costs(GIB, 500.0).forecast(weights(), {tokens: 5}, 2.0, is_full=is_full)
    assert found["limit"] == limit
    assert found["run_s"] == pytest.approx(run_s)
    assert (found["read_s"], found["compute_s"]) == (80.0, 10 * tokens / 500)
    assert (figures["passes"], figures["bytes_read"]) == (10, 80 * GIB)
    assert figures["wait_share"] == pytest.approx(1 - 10 * tokens / 500 / run_s)


def test_steps_of_different_sizes_are_added_one_by_one() -> None:
    found, _ = costs(GIB, 500.0).forecast(weights(), {8000: 1, 100: 9}, 1.0, is_full=False)
    assert found["run_s"] == pytest.approx(16 + 9 * 8)
    assert found["limit"] == "disk"


def test_experts_have_no_time_before_a_run() -> None:
    found, figures = costs(GIB, None).forecast(weights(), {100: 9}, 1.0, is_full=False)
    assert (found["run_s"], found["compute_s"], found["limit"]) == (None, None, None)
    assert found["read_s"] == pytest.approx(72)
    assert figures["wait_share"] is None


def test_plain_experts_need_no_memory() -> None:
    network = published_config("qwen3-30b-a3b").network
    sizes = network.packed_sizes(2)
    mapped = network.mapped_bytes(2)
    # 128 experts of 3 x 768 x 2048 in each of 48 layers.
    assert mapped == 48 * 128 * 3 * 768 * 2048 * 2
    assert 0.9 * sum(sizes) < mapped < sum(sizes)
    assert network.mapped_bytes(4) == 0
    assert memory_for_weights("auto", sizes, 16 * GIB, mapped) is None
    assert published_config("qwen3-8b").network.mapped_bytes(2) == 0


def test_weights_that_fit_are_resident() -> None:
    sizes = [GIB] * 8
    assert memory_for_weights("auto", sizes, 11 * GIB) is None
    assert memory_for_weights("auto", sizes, 9 * GIB) == int(4.5 * GIB)
    assert memory_for_weights("auto", sizes, GIB) == 2 * GIB  # the least that works
    assert memory_for_weights("auto", sizes, 4 * GIB, mapped=6 * GIB) is None
    assert memory_for_weights(8 * GIB, sizes, GIB) is None
    assert memory_for_weights(3 * GIB, sizes, 100 * GIB) == 3 * GIB


@pytest.mark.parametrize(
    ("windows", "is_transient"), [((), True), ((0,), False), ((0, 1), False)], ids=str
)
def test_layers_share_memory_where_none_has_a_window(
    windows: tuple[int, ...], is_transient: bool
) -> None:
    """A window's layers begin behind tokens that a step without them does not have."""
    config = published_config(
        "tiny",
        use_sliding_window=True,
        sliding_window=8,
        layer_types=[f"{'sliding' if each in windows else 'full'}_attention" for each in range(2)],
    )
    network = config.network
    specs = tuple(network.kv_cache_specs("float32"))
    label = Request(0, (1, 2, 3), SamplingParams(max_tokens=1))
    fitted, found = fitted_to_pass(CONFIG, network, specs, [label], pool_bytes=1000, longest=4)
    assert all(spec.is_transient is is_transient for spec in found)
    assert (found == specs) is (fitted == CONFIG) is not is_transient
