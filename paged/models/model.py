"""Model: a network with its weights, as a run uses it."""

from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention import AttentionShape
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.network.network import Network
from pagedrun.paged.values.report_parts import LibraryFigures


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
