"""Model interface and the batch of a forward pass."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.op_values import StateInputs
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.network import Network
from pagedrun.paged.models.streaming.residency import StreamedWeights
from pagedrun.paged.values.report_parts import TransformersFigures

PIECE_TOKENS = 2048  # of a step that is computed layer by layer: activations stay small


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
    model without them. token_types: [num_tokens] int64, of encoders; None: all are 0.
    """

    input_ids: Tensor
    positions: Tensor
    num_prefill_tokens: int
    groups: tuple[GroupBatch, ...]
    logits_rows: Tensor
    states: StateInputs | None = None
    token_types: Tensor | None = None

    @property
    def has_prefill(self) -> bool:
        """True if there are prompt tokens."""
        return self.num_prefill_tokens > 0

    @property
    def has_decode(self) -> bool:
        """True if there are generated tokens."""
        return self.num_prefill_tokens < len(self.input_ids)


class Model(ABC):
    """Token ids to logits over an external KV cache.

    `dtype` is that of activations. `num_bytes` are the bytes of the weights in memory,
    `mapped_bytes` those of them in mapped files, counted as free memory by the system. `library` is
    the report section of a model computed by Transformers, else None. `streamed`: weights that are
    read from disk in each pass, None if all are in memory.
    """

    network: Network
    dtype: torch.dtype
    num_bytes: int
    mapped_bytes: int = 0
    library: TransformersFigures | None = None
    streamed: StreamedWeights | None = None

    @abstractmethod
    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into the cache; return the input of `head`.

        Returns [num_logits, hidden_size] in the model's dtype, one row per `batch.logits_rows`.
        """

    def hidden_by_layer(self, batches: Sequence[ForwardBatch], cache: KVCache) -> list[Tensor]:
        """Return `hidden` of each batch, in order, as if they were computed one after the other.

        A decoder computes all batches with one layer before it goes on to the next.
        """
        return [self.hidden(batch, cache) for batch in batches]

    def hidden_and_states(self, batch: ForwardBatch, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Return `hidden`, and the states of all tokens for `predict`, [num_tokens, hidden_size] in
        the model's dtype; only for a network that has an MTP module."""
        raise NotImplementedError("a network without an MTP module")

    def follow(self, states: Tensor, next_ids: Tensor, batch: ForwardBatch, cache: KVCache) -> None:
        """Write the keys and values of the MTP module for the tokens of a batch into the cache, and
        compute no more of it; arguments as those of `predict`."""
        raise NotImplementedError("a network without an MTP module")

    def predict(
        self, states: Tensor, next_ids: Tensor, batch: ForwardBatch, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """Apply the MTP module to the tokens of a batch, whose `input_ids` it does not read.

        states: of the tokens. next_ids: [num_tokens] int64, the tokens behind them. Writes the
        module's keys and values into the cache. Returns inputs of `head` for the tokens after the
        next ones, and states for a further prediction, [num_tokens, hidden_size] each.
        """
        raise NotImplementedError("a network without an MTP module")

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `hidden`, [num_rows, vocab_size] in its dtype.

        A network without a head returns `hidden`.
        """

    def attention_shape(self, group: int, cache_dtype: torch.dtype) -> AttentionShape:
        """Return the shape of attention of a KV group over a cache of `cache_dtype`."""
        heads = self.network.kv_groups[group].heads
        return AttentionShape(
            heads.num_heads, heads.num_kv_heads, heads.head_dim, self.dtype, cache_dtype
        )

    def activation_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Return the peak bytes of the activations of a step."""
        return self.network.activation_bytes(self.dtype.itemsize, num_tokens, num_logits)

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the cache layout of each KV group in `dtype`, a name of torch."""
        return self.network.kv_cache_specs(dtype)

    def state_specs(self) -> tuple[StateSpec, ...]:
        """Return the state of a sequence in each recurrent layer."""
        return self.network.state_specs(str(self.dtype).removeprefix("torch."))


NO_SLOT = -1  # key and value of the token are in the cache already
