"""BlockState: what a block of the pool is good for at one moment, by a snapshot."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.report.record.snapshot import PoolSamples

States = NDArray[np.uint8]


class BlockState(IntEnum):
    """Held by nobody and empty, held by nobody but found by later prompts, by one, by several."""

    FREE = 0
    CACHED = 1
    PRIVATE = 2
    SHARED = 3


def block_states(samples: PoolSamples, number: int) -> States:
    """Return the `BlockState` of each block in sample `number`, [num_blocks] uint8."""
    ref_counts = samples.ref_counts[number]
    states: States = np.where(
        ref_counts > 1,
        np.uint8(BlockState.SHARED),
        np.where(
            ref_counts == 1,
            np.uint8(BlockState.PRIVATE),
            np.where(
                samples.fills[number] > 0, np.uint8(BlockState.CACHED), np.uint8(BlockState.FREE)
            ),
        ),
    )
    return states


def state_counts(samples: PoolSamples) -> NDArray[np.int64]:
    """Return how many blocks are in each state, [num_samples, 4] int64, as `BlockState` counts."""
    counts = np.zeros((len(samples), len(BlockState)), dtype=np.int64)
    for number in range(len(samples)):  # one at a time: all states at once may not fit in memory
        counts[number] = np.bincount(block_states(samples, number), minlength=len(BlockState))
    return counts


def num_tokens_held(samples: PoolSamples, number: int) -> int:
    """Return the tokens in held blocks in sample `number`; a shared block counts once."""
    fills = samples.fills[number].astype(np.int64)
    return int(fills[samples.ref_counts[number] > 0].sum())
