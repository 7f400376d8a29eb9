"""Layer: one layer of a decoder, with its weights."""

from typing import Protocol

from torch import Tensor

from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch


class Layer(Protocol):
    """How a layer's output meets the residual stream is its own affair."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        ...

    def __call__(
        self,
        x: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        keep: Tensor | None,
        inputs: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        """Return the layer's output, not yet added, and the residual stream without it.

        The output is None where it is added already.

        x: [num_tokens, hidden_size] model dtype, still to be added to residual [num_tokens,
        hidden_size] float32; None before the first layer. `keep` [num_kept] int64 names the tokens
        that go on behind attention, or a recurrence; None keeps all. inputs: [num_tokens, size],
        what the layer is given of each token besides, in a network that has `LayerInputs`.
        """
        ...
