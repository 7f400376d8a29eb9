"""Settings that nobody gave, as they suit the device, the model and the file.

On a processor they are what `EngineConfig` has as its defaults. On a GPU a step is to be large
enough for the device, a block as long as what its attention reads at once, and as many rows are to
run as its memory holds. `plan` and `generate` ask the same functions, with the same plan.
"""

from dataclasses import replace
from typing import Any

from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.sizing.pool_demand import PoolDemand
from pagedrun.paged.values.engine_config import EngineConfig

GPU_BLOCK_SIZE = 64  # tokens
GPU_REFILL_SHARE = 1 / 16
# Tokens of a step by what the memory is sold as: with less, what a step needs for a moment takes
# too large a part of it.
_BATCHED_TOKENS = ((70 * 10**9, 16_384), (23 * 10**9, 8_192), (0, 4_096))
LEAST_SEATS, MOST_SEATS = 64, 1_024
_SEATS_ALIKE = 64  # steps are captured for multiples of so many rows


def fitted_to_device(config: EngineConfig, memory_bytes: int | None) -> EngineConfig:
    """Return the configuration with what of it is to be fitted as it suits a device.

    memory_bytes: of the device's own memory, None for a processor. Seats are the most there can be
    until the plan is known: see `fitted_to_plan`.
    """
    if memory_bytes is None:
        return config
    tokens = next(tokens for least, tokens in _BATCHED_TOKENS if memory_bytes >= least)
    fitted: dict[str, Any] = {
        "block_size": GPU_BLOCK_SIZE,
        "max_num_seqs": MOST_SEATS,
        "max_num_batched_tokens": tokens,
        "refill_share": GPU_REFILL_SHARE,
    }
    return replace(config, **{name: fitted[name] for name in config.fitted if name in fitted})


def fitted_to_plan(
    config: EngineConfig, memory_bytes: int | None, first: Plan, num_blocks: int
) -> EngineConfig:
    """Return the configuration with as many seats as a pool holds rows of a file, if they are to be
    fitted.

    first: the plan of the file's first window. num_blocks: of the pool.
    """
    if memory_bytes is None or not len(first):
        return config
    demand = PoolDemand.of(first, (), is_whole=False)
    return fitted_to_demand(config, memory_bytes, demand, num_blocks)


def fitted_to_demand(
    config: EngineConfig, memory_bytes: int | None, demand: PoolDemand, num_blocks: int
) -> EngineConfig:
    """Return what `fitted_to_plan` does for a plan that is elsewhere, of which this is known.

    Rows are reckoned with at the length that their answers may have, on average: which of them run
    together is for the predictor of output lengths to say.
    """
    if memory_bytes is None or "max_num_seqs" not in config.fitted:
        return config
    shared = min(demand.num_shared, num_blocks) * config.prefix_caching
    held = int((num_blocks - shared) / demand.mean)
    seats = held // _SEATS_ALIKE * _SEATS_ALIKE
    return replace(config, max_num_seqs=min(max(seats, LEAST_SEATS), MOST_SEATS))
