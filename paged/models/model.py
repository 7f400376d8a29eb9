"""Model: token ids in, logits out; and the batch that a forward pass reads."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.op_values import StateInputs
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.network import Network
from pagedrun.paged.values.report_parts import LibraryFigures


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """What the layers of one group need: where they write keys and values, and how they attend.

    slots: [num_tokens] int64, `block_id * block_size + offset`. attention: what was prepared for
    the step, for all layers of the group.
    """

    slots: Tensor
    attention: Attention


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Everything a forward pass needs besides weights and cache, on the model's device.

    The batch's tokens are all prefill tokens, then all decode tokens. Prompt tokens always take
    the prefill path and generated ones the decode path, also when a preempted sequence is
    computed again, since the two do not round alike.

    input_ids, positions: [num_tokens] int64. groups: what differs between groups of layers.
    logits_rows: [num_logits] int64, the tokens whose logits are wanted: the last ones of chunks
    that sample, in their order, then those whose next token is to be scored. states: for recurrent
    layers; None for a model without them.
    """

    input_ids: Tensor
    positions: Tensor
    num_prefill_tokens: int
    groups: tuple[GroupBatch, ...]
    logits_rows: Tensor
    states: StateInputs | None = None

    @property
    def has_prefill(self) -> bool:
        """Whether there are prompt tokens."""
        return self.num_prefill_tokens > 0

    @property
    def has_decode(self) -> bool:
        """Whether there are generated tokens."""
        return self.num_prefill_tokens < len(self.input_ids)


class Model(Protocol):
    """Token ids in, logits out; keys and values are kept in a cache that is not the model's."""

    @property
    def network(self) -> Network:
        """What it consists of."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        ...

    @property
    def mapped_bytes(self) -> int:
        """Bytes of `num_bytes` that stay in mapped files, where the system counts them as free."""
        ...

    @property
    def library(self) -> LibraryFigures | None:
        """What a report says of it if the code of a library computes it."""
        ...

    def attention_shape(self, group: int, cache_dtype: torch.dtype) -> AttentionShape:
        """Return what a backend must know to prepare attention of a group of layers, over a cache
        of that dtype."""
        ...

    def activation_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network."""
        ...

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the groups of layers, by what they keep of each token in `dtype`, torch's name."""
        ...

    def state_specs(self) -> tuple[StateSpec, ...]:
        """Return what each recurrent layer keeps of a sequence; empty if there are none."""
        ...

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into the cache; return what `head` makes logits of.

        Returns [num_logits, hidden_size] in the model's dtype, one row per `batch.logits_rows`.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits of some rows of `hidden`, [num_rows, vocab_size] in its dtype."""
        ...


NO_SLOT = -1  # the token's key and value are in the cache already
