"""Attention over a shared prefix: read once for all rows, or by each of them."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint
from pagedrun.paged.bench.kernels.roof import Work

ONCE, REREAD = "read once", "re-read"
OWN_TOKENS = 64  # behind the prefix


@dataclass(frozen=True, slots=True)
class PrefixPoint:
    """`group` rows that share `prefix` tokens, whole partitions and whole blocks."""

    prefix: int
    group: int

    @property
    def place(self) -> dict[str, int]:
        """The sizes, as a result states them."""
        return {"prefix": self.prefix, "group": self.group}

    @property
    def work(self) -> float:
        """What its time is about proportional to: the reading again."""
        return float(self.group * (self.prefix + OWN_TOKENS))

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory that it takes, states of the rows included."""
        states = 4 * contexts.shape.query_elements(self.group)
        return contexts.context_bytes(self.group, OWN_TOKENS, self.prefix) + states

    def build(self, contexts: KernelContexts, kernels: ModuleType) -> KernelPoint:
        """Return the point with its data."""
        made = contexts.make(
            self.group, OWN_TOKENS, shared_tokens=self.prefix, num_queries=self.group
        )
        rows = torch.arange(self.group, dtype=torch.int32, device=contexts.device)
        lengths = contexts.int32(*[self.prefix + OWN_TOKENS] * self.group)
        groups = self._work_items(contexts, kernels)
        memory = (made.key_cache, made.value_cache, made.block_tables)
        scale = contexts.shape.scale

        def once() -> Tensor:
            state = kernels.prefix_attention(made.q, *memory, groups, scale)
            answer: Tensor = kernels.decode_attention(
                made.q, *memory, rows, lengths, scale, None, state
            )
            return answer

        def reread() -> Tensor:
            answer: Tensor = kernels.decode_attention(made.q, *memory, rows, lengths, scale, None)
            return answer

        own = self.group * OWN_TOKENS
        return KernelPoint(
            self.place,
            [
                KernelCall(REREAD, reread, self._work(contexts, self.group * self.prefix + own)),
                KernelCall(ONCE, once, self._work(contexts, self.prefix + own)),
            ],
            ratios={"re-read over once": (REREAD, ONCE)},
        )

    def _work_items(self, contexts: KernelContexts, kernels: ModuleType) -> Any:
        """Return who reads what: in the form that a launch on a GPU can be captured with."""
        groups = _one_group(self)
        if kernels.__name__ != "pagedrun.kernels.gpu":
            return groups
        from pagedrun.kernels.gpu.attention.prefix_attention import (
            prefix_work,  # Triton is not everywhere
        )

        return prefix_work(
            groups,
            num_heads=contexts.shape.num_heads,
            num_kv_heads=contexts.shape.num_kv_heads,
            head_dim=contexts.shape.head_dim,
            dtype=contexts.dtype,
            cache_dtype=contexts.dtype,
            device=contexts.device,
        )

    def _work(self, contexts: KernelContexts, tokens_read: int) -> Work:
        shape = contexts.shape
        elements = shape.kv_elements(tokens_read) + shape.query_elements(self.group)
        flops = shape.attention_flops(self.group * (self.prefix + OWN_TOKENS))
        return Work(elements * contexts.dtype.itemsize, flops)


def _one_group(point: PrefixPoint) -> PrefixGroups:
    """Return all rows as one group; who reads what is decided on the host."""
    num_partitions = point.prefix // PARTITION_TOKENS
    return PrefixGroups(
        rows=torch.arange(point.group, dtype=torch.int32),
        row_starts=torch.tensor([0, point.group], dtype=torch.int32),
        table_rows=torch.zeros(1, dtype=torch.int32),
        first_partitions=torch.zeros(1, dtype=torch.int32),
        last_partitions=torch.full((1,), num_partitions, dtype=torch.int32),
        num_partitions=torch.full((point.group,), num_partitions, dtype=torch.int32),
    )
