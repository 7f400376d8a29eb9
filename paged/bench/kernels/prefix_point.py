"""Attention over a shared prefix: read once for all rows, or by each of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention_inputs import AttentionInputs, DecodeInputs
from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.attention.prefix_groups import PrefixGroups
from pagedrun.kernels.backend import Backend
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint, Place
from pagedrun.paged.bench.kernels.roofline import Work

ONCE, REREAD = "read once", "re-read"
OWN_TOKENS = 64  # behind the prefix


@dataclass(frozen=True, slots=True)
class PrefixPoint:
    """`group` rows that share `prefix` tokens, whole partitions and whole blocks."""

    prefix: int
    group: int

    @property
    def place(self) -> Place:
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

    def build(self, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
        """Return the point with its data."""
        made = contexts.make(
            self.group, OWN_TOKENS, shared_tokens=self.prefix, num_queries=self.group
        )
        rows = torch.arange(self.group, dtype=torch.int32, device=contexts.device)
        lengths = contexts.int32(*[self.prefix + OWN_TOKENS] * self.group)
        decode = DecodeInputs(rows, lengths, _one_group(self))
        inputs = AttentionInputs(made.block_tables, decode=decode)
        attention = kernels.prepare(inputs, contexts.attention_shape)
        q, layer, softmax = made.q, made.layer, contexts.shape.softmax

        def once() -> Tensor:
            prefix = attention.prefix(q, layer, softmax)
            return attention.decode(q, layer, softmax, None, prefix)

        def reread() -> Tensor:
            return attention.decode(q, layer, softmax)

        own = self.group * OWN_TOKENS
        return KernelPoint(
            self.place,
            [
                KernelCall(REREAD, reread, self._work(contexts, self.group * self.prefix + own)),
                KernelCall(ONCE, once, self._work(contexts, self.prefix + own)),
            ],
            ratios={"re-read over once": (REREAD, ONCE)},
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
