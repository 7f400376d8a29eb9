"""Attention of one step: its interface, and inputs bound to the operations of a backend.

A backend prepares the inputs of a step once; each layer then calls `prefill`, `prefix` and
`decode`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    DecodeInputs,
    KVLayer,
    PrefillInputs,
    PrefixGroups,
    PrefixResult,
    PrefixState,
    Softmax,
)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads, and dtypes of queries and cache, the same in all layers.

    block_size: tokens in a block, 0 where that is not known. It decides no bytes.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    block_size: int = 0


class Attention(Protocol):
    """Attention over the `AttentionInputs` that it was prepared from, in one layer after the other.

    q: [num_tokens, num_heads, head_dim], of the step's prefill tokens or of its decode tokens.
    `layer` holds their own keys and values already. `window`: how many tokens a query sees, None
    for all before it.
    The operations are defined in `pagedrun.kernels.reference.attention`.
    """

    def prefill(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
    ) -> Tensor:
        """Attend from the chunks of prompt tokens; returns the shape and dtype of `q`."""
        ...

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Attend from generated tokens over the partitions that they read together.

        Returns the state that `decode` continues, None without shared partitions. There is no
        window, since it would begin elsewhere for each row.
        """
        ...

    def decode(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
        prefix: PrefixResult | None = None,
    ) -> Tensor:
        """Attend from generated tokens, each over the keys outside `prefix`."""
        ...

    def regroup(self, groups: PrefixGroups) -> None:
        """Replace the groups of rows that share partitions; `groups` are on the host.

        Attention prepared with `room` keeps its memory, which captured launches read.
        """
        ...


Work_contra = TypeVar("Work_contra", contravariant=True)  # groups in the form of a backend
Work = TypeVar("Work")
Result = TypeVar("Result", bound=PrefixResult)  # its result for them


class AttentionOps(Protocol[Work_contra, Result]):
    """Attention operations of a backend, defined in `pagedrun.kernels.reference.attention`."""

    def prefill_attention(
        self,
        q: Tensor,
        layer: KVLayer,
        block_tables: Tensor,
        chunks: PrefillInputs,
        softmax: Softmax,
        window: int | None,
    ) -> Tensor:
        """Attend from chunks of consecutive queries."""
        ...

    def prefix_attention(
        self,
        q: Tensor,
        layer: KVLayer,
        block_tables: Tensor,
        groups: Work_contra,
        softmax: Softmax,
    ) -> Result:
        """Attend over shared partitions."""
        ...

    def decode_attention(
        self,
        q: Tensor,
        layer: KVLayer,
        block_tables: Tensor,
        rows: DecodeInputs,
        softmax: Softmax,
        window: int | None,
        prefix: Result | None = None,
    ) -> Tensor:
        """Attend from single queries, going on from `prefix`."""
        ...


@dataclass(slots=True)
class PreparedAttention(ABC, Generic[Work, Result]):
    """Implements `Attention`. `work`: the groups of the inputs, None where no rows read together.

    `result_type` is what `ops.prefix_attention` returns.
    """

    ops: AttentionOps[Work, Result]
    result_type: type[Result]
    inputs: AttentionInputs
    work: Work | None

    def prefill(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
    ) -> Tensor:
        """Attend from the chunks of prompt tokens."""
        chunks = self.inputs.prefill
        assert chunks is not None, "there are no prompt tokens"
        return self.ops.prefill_attention(
            q, layer, self.inputs.block_tables, chunks, softmax, window
        )

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Attend from generated tokens over the partitions that they read together."""
        if self.work is None:
            return None
        return self.ops.prefix_attention(q, layer, self.inputs.block_tables, self.work, softmax)

    def decode(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
        prefix: PrefixResult | None = None,
    ) -> Tensor:
        """Attend from generated tokens, each over the keys that `prefix` leaves out."""
        rows = self.inputs.decode
        assert rows is not None, "there are no generated tokens"
        assert prefix is None or isinstance(prefix, self.result_type), "of another backend"
        return self.ops.decode_attention(
            q, layer, self.inputs.block_tables, rows, softmax, window, prefix
        )

    @abstractmethod
    def regroup(self, groups: PrefixGroups) -> None:
        """Replace the groups of rows that share partitions."""


class HostAttention(PreparedAttention[PrefixGroups, PrefixState]):
    """For backends that work on the groups as they are."""

    __slots__ = ()

    @classmethod
    def of(
        cls, inputs: AttentionInputs, ops: AttentionOps[PrefixGroups, PrefixState]
    ) -> "HostAttention":
        """Return attention over the inputs; nothing needs to be made of them."""
        groups = None if inputs.decode is None else inputs.decode.groups
        return cls(ops, PrefixState, inputs, groups)

    def regroup(self, groups: PrefixGroups) -> None:
        """Replace the groups of rows that share partitions."""
        self.work = groups
