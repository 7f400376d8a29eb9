"""Decoder: embedding, layers, and the head that gives logits.

The residual stream is float32 whatever the model's dtype. Every op treats each token by itself
(attention excepted, which reads the cache), so a token's bytes do not depend on its batch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention import AttentionShape
from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace, StatePlace, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.embedding import Embedding
from pagedrun.paged.models.layers.layer import Layer
from pagedrun.paged.models.layers.layer_inputs import LayerInputs
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.layers.rotary_tables import RotaryTables
from pagedrun.paged.models.network.decoder_spec import DecoderSpec, LayerT
from pagedrun.paged.models.network.layer_spec import LayerSpec
from pagedrun.paged.models.weight_source import WeightSource

MakeLayer = Callable[[LayerT, KVPlace | StatePlace, WeightSource, RotaryTables], Layer]


class Decoder:
    """A network with the weights of `source`; implements `Model`.

    `num_positions` bounds the positions that will be asked for. `make_layer` makes a layer of
    its description, its place in the cache, weights and rotations.
    """

    library = None

    def __init__(
        self,
        network: DecoderSpec[LayerT],
        source: WeightSource,
        num_positions: int,
        make_layer: MakeLayer[LayerT],
    ) -> None:
        self.network: DecoderSpec[LayerSpec] = network
        self.dtype = source.dtype
        self._embedding = Embedding(network.embedding, source)
        if network.head is None:
            self._head = self._embedding.head()
        else:
            self._head = network.head.load(source)
        self._norm = Norm(network.norm, source)
        inputs = network.layer_inputs
        self._layer_inputs = None if inputs is None else LayerInputs(inputs, source)
        self._kernels = source.kernels
        # As transformers rounds it: 62 for the 61.97 of a Gemma in bfloat16.
        self._scale = torch.tensor(network.embedding.scale, dtype=source.dtype).item()
        tables = RotaryTables(num_positions, network.max_position_embeddings, source.device)
        self._layers = [
            make_layer(layer, place, source, tables)
            for layer, place in zip(network.layers, network.places, strict=True)
        ]
        self.mapped_bytes = source.mapped_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held: a tied head is packed, hence held twice."""
        shares_embedding = self.network.head is None and not self._head.is_packed
        head = 0 if shares_embedding else self._head.num_bytes
        layers = sum(layer.num_bytes for layer in self._layers)
        inputs = 0 if self._layer_inputs is None else self._layer_inputs.num_bytes
        return self._embedding.num_bytes + inputs + layers + self._norm.num_bytes + head

    def attention_shape(self, group: int, cache_dtype: torch.dtype) -> AttentionShape:
        """Return what a backend must know to prepare attention of a group of layers, over a cache
        of that dtype."""
        heads = self.network.kv_groups[group].heads
        return AttentionShape(
            heads.num_heads, heads.num_kv_heads, heads.head_dim, self.dtype, cache_dtype
        )

    def activation_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network."""
        return self.network.activation_bytes(self.dtype.itemsize, num_tokens, num_logits)

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the groups of layers, by what they keep of each token in `dtype`, torch's name."""
        return self.network.kv_cache_specs(dtype)

    def state_specs(self) -> tuple[StateSpec, ...]:
        """Return what each recurrent layer keeps of a sequence."""
        return self.network.state_specs(str(self.dtype).removeprefix("torch."))

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into the cache; return what `head` makes logits of.

        Returns [num_logits, hidden_size] in the model's dtype, one row per `batch.logits_rows`.
        """
        residual = self._embedding(batch.input_ids).float()
        if self._scale != 1.0:
            residual *= self._scale
        inputs: Sequence[Tensor | None] = [None] * len(self._layers)
        if self._layer_inputs is not None:
            inputs = self._layer_inputs(batch.input_ids, residual.to(self.dtype)).unbind()
        x: Tensor | None = None  # what the previous layer adds to the residual
        for layer, own in zip(self._layers[:-1], inputs, strict=False):
            x, residual = layer(x, residual, batch, cache, None, own)
        # Behind the last layer's attention only the tokens whose logits are wanted matter.
        x, residual = self._layers[-1](x, residual, batch, cache, batch.logits_rows, inputs[-1])
        return self._norm(x, residual) if len(residual) else residual.to(self.dtype)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits of some rows of `hidden`, [num_rows, vocab_size] in its dtype."""
        if not len(hidden):
            return hidden.new_empty(0, self.network.embedding.vocab_size)
        logits = self._head(hidden)
        if self.network.logits_divisor != 1.0:
            logits = logits / self.network.logits_divisor
        if self.network.logits_cap is not None:
            self._kernels.cap_logits(logits, self.network.logits_cap)
        return logits
