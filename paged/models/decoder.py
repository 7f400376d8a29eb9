"""Decoder: embedding, layers, and the head that gives logits.

The residual stream is float32 whatever the model's dtype. Every op treats each token by itself
(attention excepted, which reads the cache), so a token's bytes do not depend on its batch.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace, StatePlace, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.models.modules.embedding_layer import Embedding, InputGate, LayerInputs
from pagedrun.paged.models.modules.moe_layer import ParallelMoe
from pagedrun.paged.models.modules.norm import NormSpec
from pagedrun.paged.models.modules.norm_layer import Norm
from pagedrun.paged.models.modules.rotary_tables import RotaryTables


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


class Decoder:
    """A network with the weights of `source`; implements `Model`.

    `num_positions` is the number of positions with precomputed rotations.
    """

    library = None

    def __init__(
        self,
        network: DecoderSpec,
        source: WeightSource,
        num_positions: int,
    ) -> None:
        self.network = network
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
            layer.load(place, source, tables)
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


class DecoderLayer:
    """Both outputs are added to the residual stream, the second by whoever comes next."""

    def __init__(
        self,
        spec: DecoderLayerSpec,
        place: KVPlace | StatePlace,
        source: WeightSource,
        tables: RotaryTables,
    ) -> None:
        self._mixer = spec.mixer.load(place, source, tables)
        self._ffn = spec.ffn.load(source)
        multiplier = spec.residual_multiplier
        self._around_mixer = _Residual(
            spec.attention_norm, spec.attention_out_norm, multiplier, source
        )
        self._around_ffn = _Residual(spec.ffn_norm, spec.ffn_out_norm, multiplier, source)
        beside, gate, scale = spec.parallel_moe, spec.input_gate, spec.scale
        self._parallel_moe = None if beside is None else ParallelMoe(beside, source)
        self._input_gate = None if gate is None else InputGate(gate, source)
        self._scale = None if scale is None else source.tensor(scale)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        parts = (self._around_mixer, self._mixer, self._around_ffn, self._ffn)
        others = (self._parallel_moe, self._input_gate)
        scale = 0 if self._scale is None else self._scale.nbytes
        return scale + sum(part.num_bytes for part in (*parts, *others) if part is not None)

    def __call__(
        self,
        x: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        keep: Tensor | None,
        inputs: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        """See `Layer`."""
        mixed = self._mixer(self._around_mixer.enter(x, residual), batch, cache)
        if keep is not None:
            mixed, residual = mixed[keep], residual[keep]
            inputs = None if inputs is None else inputs[keep]
            if not len(keep):
                return mixed.new_empty(residual.shape), residual
        x = self._around_mixer.leave(self._mixer.out(mixed))
        x = self._ffn(self._around_ffn.enter(x, residual))
        if self._parallel_moe is not None:
            x = self._parallel_moe(x, residual)
        x = self._around_ffn.leave(x)
        if self._input_gate is not None:
            assert inputs is not None, "a network whose layers have no inputs"
            residual += x
            x = self._input_gate(residual, inputs)
        if self._scale is None:
            return x, residual
        residual += x
        residual *= self._scale
        return None, residual


class _Residual:
    """How either part reads the residual stream, and what is added to it."""

    def __init__(
        self,
        norm: NormSpec | None,
        out_norm: NormSpec | None,
        multiplier: float,
        source: WeightSource,
    ) -> None:
        self._norm = None if norm is None else Norm(norm, source)
        self._out_norm = None if out_norm is None else Norm(out_norm, source)
        self._multiplier = multiplier
        self._dtype = source.dtype

    @property
    def num_bytes(self) -> int:
        return sum(norm.num_bytes for norm in (self._norm, self._out_norm) if norm is not None)

    def enter(self, x: Tensor | None, residual: Tensor) -> Tensor:
        """Add x to the residual stream, in place; return what is read of it."""
        if self._norm is not None:
            return self._norm(x, residual)
        if x is not None:
            residual += x
        return residual.to(self._dtype)

    def leave(self, x: Tensor) -> Tensor:
        """Return what is to be added to the residual stream."""
        if self._out_norm is not None:
            x = self._out_norm.alone(x)
        return x if self._multiplier == 1.0 else x * self._multiplier
