"""What the kernels of attention work on, in bundles; Numba takes them apart at no cost."""

from typing import Any, NamedTuple

import numpy as np

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.cpu.exp2 import LOG2_E
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.aligned import aligned_zeros

BLOCK_ROWS = 32  # a row is one query head of one token


class Cache(NamedTuple):
    """Keys or values, or their codes.

    blocks: [num_blocks, num_kv_heads, block_size, head_dim]; flat: the same memory as one row.
    scales: [num_blocks, num_kv_heads, block_size] float32, without blocks where the cache is not
    quantised.
    """

    blocks: Any
    flat: Any
    scales: Any


class Work(NamedTuple):
    """Who reads what; rows and groups: see `groups`.

    tables: [num_tables, max_blocks] int32. lows, highs: [num_tokens] int32, the positions that a
    token sees; empty where every token sees all.
    """

    tables: Any
    rows: Any
    groups: Any
    lows: Any
    highs: Any


class SoftmaxNumbers(NamedTuple):
    """scale: log2(e) included where there is no cap. softcap: 0 for none. Both are float32.

    sinks: [num_heads] float32, times log2(e); empty for none.
    """

    scale: Any
    softcap: Any
    sinks: Any

    @classmethod
    def of(cls, softmax: Softmax) -> "SoftmaxNumbers":
        """Return what kernels read of it."""
        scale, softcap = np.float32(softmax.scale), np.float32(softmax.softcap or 0.0)
        sinks = np.empty(0, np.float32)
        if softmax.sinks is not None:
            sinks = softmax.sinks.numpy() * LOG2_E
        return cls(scale if softmax.softcap else scale * LOG2_E, softcap, sinks)


class State(NamedTuple):
    """What tokens have read, from one of their groups to the next.

    peaks, sums: [num_tokens, num_heads] float32, the largest score so far (a power of two) and the
    sum of weights relative to it. totals: [num_tokens, num_heads, head_dim] float32.
    """

    peaks: Any
    sums: Any
    totals: Any


class Operands(NamedTuple):
    """One thread's memory for the operands of products, flat.

    keys, values: a partition each, [partition * dim]. packed: the values as a product takes them.
    queries: [num_blocks * words of a row * 32]. block_rows: the queries of a block before they are
    transposed, [32 * dim]. weights: those of a block, [words of a partition * 32].
    """

    keys: Any
    values: Any
    packed: Any
    queries: Any
    block_rows: Any
    weights: Any


@part()
def bfloat16_operands(num_blocks: Any, dim: Any) -> Any:
    """Return memory for operands that are pairs of bfloat16, two to a word."""
    return Operands(
        aligned_zeros(PARTITION_TOKENS * dim, np.uint16),
        aligned_zeros(PARTITION_TOKENS * dim, np.uint16),
        aligned_zeros(PARTITION_TOKENS * dim, np.uint16),
        aligned_zeros(num_blocks * dim // 2 * BLOCK_ROWS, np.uint32),
        aligned_zeros(BLOCK_ROWS * dim, np.uint16),
        aligned_zeros(PARTITION_TOKENS // 2 * BLOCK_ROWS, np.uint32),
    )


@part()
def float32_operands(num_blocks: Any, dim: Any) -> Any:
    """Return memory for float32 operands; values are taken as they are."""
    values = aligned_zeros(PARTITION_TOKENS * dim, np.float32)
    return Operands(
        aligned_zeros(PARTITION_TOKENS * dim, np.float32),
        values,
        values,
        aligned_zeros(num_blocks * dim * BLOCK_ROWS, np.float32),
        aligned_zeros(BLOCK_ROWS * dim, np.float32),
        aligned_zeros(PARTITION_TOKENS * BLOCK_ROWS, np.float32),
    )
