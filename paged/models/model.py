"""Model interface and the batch of a forward pass."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.op_values import StateInputs
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.network import Network
from pagedrun.paged.values.report_parts import TransformersFigures


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Cache slots and prepared attention of the layers of one KV group.

    slots: [num_tokens] int64, `block_id * block_size + offset`. attention: prepared once a step
    for all layers of the group.
    """

    slots: Tensor
    attention: Attention


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Inputs of a forward pass besides weights and cache, on the model's device.

    Prefill tokens come first, then decode tokens. Prompt tokens always take the prefill path and
    generated tokens the decode path, also if a preempted sequence is recomputed, since the two
    round differently.

    input_ids, positions: [num_tokens] int64. groups: one for each KV group. logits_rows:
    [num_logits] int64, indices of the tokens with logits: the last ones of chunks that sample, in
    their order, then those that score their next token. states: of recurrent layers; None for a
    model without them.
    """

    input_ids: Tensor
    positions: Tensor
    num_prefill_tokens: int
    groups: tuple[GroupBatch, ...]
    logits_rows: Tensor
    states: StateInputs | None = None

    @property
    def has_prefill(self) -> bool:
        """True if there are prompt tokens."""
        return self.num_prefill_tokens > 0

    @property
    def has_decode(self) -> bool:
        """True if there are generated tokens."""
        return self.num_prefill_tokens < len(self.input_ids)


class Model(Protocol):
    """Interface of models: token ids to logits over an external KV cache."""

    @property
    def network(self) -> Network:
        """Description of the network."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        ...

    @property
    def mapped_bytes(self) -> int:
        """Bytes of `num_bytes` in mapped files, counted as free memory by the system."""
        ...

    @property
    def library(self) -> TransformersFigures | None:
        """Report section of a model computed by Transformers, else None."""
        ...

    def attention_shape(self, group: int, cache_dtype: torch.dtype) -> AttentionShape:
        """Return the shape of attention of a KV group over a cache of `cache_dtype`."""
        ...

    def activation_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Return the peak bytes of the activations of a step."""
        ...

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the cache layout of each KV group in `dtype`, a name of torch."""
        ...

    def state_specs(self) -> tuple[StateSpec, ...]:
        """Return the state of a sequence in each recurrent layer."""
        ...

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into the cache; return the input of `head`.

        Returns [num_logits, hidden_size] in the model's dtype, one row per `batch.logits_rows`.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `hidden`, [num_rows, vocab_size] in its dtype."""
        ...


NO_SLOT = -1  # key and value of the token are in the cache already
