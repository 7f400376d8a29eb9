"""Attention of a decode step if each row reads its whole context for itself, at full speed.

`--no-prefix-once` is not that: so that it gives the same bytes, it does the matrix products of
shared reading for one row at a time, which is slower than never having heard of sharing. What
reading once is worth must be measured against the kernel that rows without a shared prefix use.
"""

from time import perf_counter

import torch

from pagedrun.kernels import cpu
from pagedrun.paged.bench.workload import Workload
from pagedrun.paged.kv_cache import KVLayout


class AttentionAlone:
    """Blocks laid out as after the prefill of `workload`: the whole blocks of its prefix shared.

    All rows begin alike. The keys, values and queries are random, each row half way through its
    answer. `weight_bytes` of a layer pass through the processor's cache between two layers, as in a
    real step; that is not timed.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_heads: int,
        block_size: int,
        workload: Workload,
        weight_bytes: int,
    ) -> None:
        rows, length = workload.rows, workload.prompt_tokens + workload.output // 2
        num_shared = workload.shared // block_size
        num_private = -(-length // block_size) - num_shared
        own = num_shared + torch.arange(rows * num_private, dtype=torch.int32)
        shared = torch.arange(num_shared, dtype=torch.int32).expand(rows, -1)
        self._tables = torch.cat([shared, own.view(rows, num_private)], 1)
        self._blocks = layout.allocate(num_shared + rows * num_private, block_size).normal_()
        self._q = torch.randn(rows, num_heads, layout.head_dim).to(layout.dtype)
        self._rows = torch.arange(rows, dtype=torch.int32)
        self._lengths = torch.full((rows,), length, dtype=torch.int32)
        self._weights = torch.zeros(weight_bytes, dtype=torch.uint8)
        self._scale = layout.head_dim**-0.5

    def seconds(self) -> float:
        """Return the seconds that all layers take once."""
        seconds = 0.0
        for keys, values in self._blocks:
            self._weights.add_(1)
            began = perf_counter()
            cpu.decode_attention(
                self._q,
                keys,
                values,
                self._tables,
                self._rows,
                self._lengths,
                self._scale,
                None,
            )
            seconds += perf_counter() - began
        return seconds
