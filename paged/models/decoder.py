"""Decoder: embedding, layers and language-model head.

The residual stream is float32 whatever the model's dtype. Each op except attention computes one
token independently of the others, so the bytes of a token do not depend on its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from pagedrun.kernels.ops import Linear
from pagedrun.paged.cache.cache_spec import KVLayerIndex, StateLayerIndex
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.checkpoint.weight_source import MakePart, WeightSource, num_bytes
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec
from pagedrun.paged.models.encoder_spec import PostNormLayerSpec
from pagedrun.paged.models.layer_spec import MtpSpec, RecurrentSpec
from pagedrun.paged.models.model import ForwardBatch, Model
from pagedrun.paged.models.modules.attention import AttentionSpec
from pagedrun.paged.models.modules.attention_layer import SelfAttention
from pagedrun.paged.models.modules.embedding import EmbeddingSpec, EncoderEmbeddingSpec
from pagedrun.paged.models.modules.embedding_layer import (
    Embedding,
    EncoderEmbedding,
    InputGate,
    LayerInputs,
)
from pagedrun.paged.models.modules.mlp import MlpSpec
from pagedrun.paged.models.modules.mlp_layer import Mlp, PlainMlp
from pagedrun.paged.models.modules.moe_layer import Moe, ParallelMoe
from pagedrun.paged.models.modules.norm import AnyNormSpec
from pagedrun.paged.models.modules.norm_layer import LayerNorm, load_norm
from pagedrun.paged.models.modules.recurrence import DeltaNetSpec, ShortConvSpec
from pagedrun.paged.models.modules.recurrence_layer import DeltaNet, ShortConv
from pagedrun.paged.models.modules.rotary_tables import RotaryTables
from pagedrun.paged.models.streaming.residency import entry_names


class Layer(Protocol):
    """A layer of a decoder, free in how it updates the residual stream."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
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
        """Return the layer's output and the residual stream without it.

        The output is None if the layer has added it already.

        x: [num_tokens, hidden_size] in the model's dtype, still to be added to residual
        [num_tokens, hidden_size] float32; None before the first layer. keep: [num_kept] int64,
        indices of the tokens to compute behind attention or a recurrence; None keeps all. inputs:
        [num_tokens, size], the layer's own input in a network with `LayerInputs`.
        """
        ...


class Decoder(Model):
    """A network with the weights of `source`.

    `num_positions` is the number of positions with precomputed rotations. Each layer is loaded by
    the entry of `LAYERS` for the type of its description.
    """

    def __init__(
        self,
        network: DecoderSpec,
        source: WeightSource,
        num_positions: int,
    ) -> None:
        self.network: DecoderSpec = network
        self.dtype = source.dtype
        self._embedding = _embedding(network.embedding, source)
        self._norm = None if network.norm is None else load_norm(network.norm, source)
        inputs = network.layer_inputs
        self._layer_inputs = None if inputs is None else LayerInputs(inputs, source)
        self._kernels = source.kernels
        # As transformers rounds it: 62 for the 61.97 of a Gemma in bfloat16.
        self._scale = torch.tensor(network.embedding.scale, dtype=source.dtype).item()
        tables = RotaryTables(num_positions, network.max_position_embeddings, source.device)
        own = network.own_layers
        # A layer that is used several times has one memory of keys and values: an encoder keeps
        # those of a layer until the next one.
        indices = dict(zip(network.layers, network.cache_indices, strict=True))
        makers: list[MakePart] = [
            partial(_load_layer, layer, indices[layer], tables) for layer in own
        ]
        if network.has_head:
            makers.append(self._make_head)
        names = entry_names(len(own), has_head=network.has_head)
        parts = source.parts(list(zip(names, makers, strict=True)))
        loaded: list[Layer] = parts[: len(own)]
        self._head: Linear | None = parts[-1] if network.has_head else None
        by_spec = dict(zip(own, loaded, strict=True))
        self._layers = [by_spec[layer] for layer in network.layers]
        self.streamed = source.streamed
        self.mapped_bytes = source.mapped_bytes
        head = self._head
        if head is not None and network.head is None and not head.is_packed:
            head = None  # it shares the table
        mtp = network.mtp if network.has_mtp else None
        self._mtp = None if mtp is None else MtpModule(mtp, network.mtp_index, source, tables)
        self.num_bytes = num_bytes(
            *(self._embedding, self._layer_inputs, *loaded, self._norm, head, self._mtp)
        )
        if self.streamed is not None:
            self.num_bytes += self.streamed.residency.ring_bytes

    def _make_head(self, source: WeightSource) -> Linear:
        head = self.network.head
        return self._embedding.head(source) if head is None else head.load(source)

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """See `Model`."""
        return self.hidden_by_layer([batch], cache)[0]

    def hidden_by_layer(self, batches: Sequence[ForwardBatch], cache: KVCache) -> list[Tensor]:
        """See `Model`."""
        streams = self._passed(batches, cache, [_kept_rows(batch) for batch in batches])
        return [self._normed(each) for each in streams]

    def hidden_and_states(self, batch: ForwardBatch, cache: KVCache) -> tuple[Tensor, Tensor]:
        """See `Model`."""
        assert self._mtp is not None, "a network without an MTP module"
        [stream] = self._passed([batch], cache, [None])
        normed = self._normed(stream)
        states = stream.residual.to(self.dtype) if self._mtp.spec.takes_stream else normed
        return normed[batch.logits_rows], states

    def predict(
        self, states: Tensor, next_ids: Tensor, batch: ForwardBatch, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """See `Model`."""
        assert self._mtp is not None, "a network without an MTP module"
        return self._mtp(self._embedded(next_ids), states, batch, cache)

    def follow(self, states: Tensor, next_ids: Tensor, batch: ForwardBatch, cache: KVCache) -> None:
        """See `Model`."""
        assert self._mtp is not None, "a network without an MTP module"
        self._mtp.store(self._embedded(next_ids), states, batch, cache)

    def _embedded(self, ids: Tensor) -> Tensor:
        embedded = self._embedding(ids)
        return embedded if self._scale == 1.0 else embedded * self._scale

    def _passed(
        self,
        batches: Sequence[ForwardBatch],
        cache: KVCache,
        keeps: Sequence[Tensor | None],
    ) -> list["_Stream"]:
        """Compute all layers; keeps: tokens to compute to the end, of each batch."""
        if self.streamed is not None:
            self.streamed.begin_step(sum(len(batch.input_ids) for batch in batches))
        streams = [self._begun(batch) for batch in batches]
        for number, layer in enumerate(self._layers):
            # Behind the attention of the last layer only tokens with logits are computed.
            is_last = number == len(self._layers) - 1
            for each, batch, keep in zip(streams, batches, keeps, strict=True):
                kept = keep if is_last else None
                inputs = each.inputs[number] if each.inputs else None
                each.x, each.residual = layer(each.x, each.residual, batch, cache, kept, inputs)
        return streams

    def _normed(self, stream: "_Stream") -> Tensor:
        """Return the hidden states behind the last norm; the residual stream is complete then."""
        if len(stream.residual) and self._norm is not None:
            return self._norm(stream.x, stream.residual)
        return stream.residual.to(self.dtype)

    def _begun(self, batch: ForwardBatch) -> "_Stream":
        residual = self._embedding.of_tokens(
            batch.input_ids, batch.positions, batch.token_types
        ).float()
        if self._scale != 1.0:
            residual *= self._scale
        inputs: Sequence[Tensor] = ()
        if self._layer_inputs is not None:
            inputs = self._layer_inputs(batch.input_ids, residual.to(self.dtype)).unbind()
        return _Stream(None, residual, inputs)

    def head(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        if self._head is None:
            return hidden
        if not len(hidden):
            return hidden.new_empty(0, self.network.embedding.vocab_size)
        logits = self._head(hidden)
        if self.network.logits_divisor != 1.0:
            logits = logits / self.network.logits_divisor
        if self.network.logits_cap is not None:
            self._kernels.cap_logits(logits, self.network.logits_cap)
        return logits


def _kept_rows(batch: ForwardBatch) -> Tensor | None:
    """Return the tokens that the last layer computes to the end; None: all, here a single one."""
    return batch.logits_rows if len(batch.input_ids) > 1 or not len(batch.logits_rows) else None


@dataclass(slots=True)
class _Stream:
    """Hidden states of a batch between layers; see `Layer`. inputs: of each layer, if any."""

    x: Tensor | None
    residual: Tensor
    inputs: Sequence[Tensor]


class DecoderLayer:
    """Layer with attention or a recurrence, then a feed-forward part.

    The output of the feed-forward part is added to the residual stream by the next layer.
    """

    def __init__(
        self,
        spec: DecoderLayerSpec,
        index: KVLayerIndex | StateLayerIndex,
        source: WeightSource,
        tables: RotaryTables,
    ) -> None:
        self._mixer = _load_mixer(spec.mixer, index, source, tables)
        ffn = spec.ffn
        self._ffn = Mlp(ffn, source) if isinstance(ffn, MlpSpec) else Moe(ffn, source)
        multiplier = spec.residual_multiplier
        self._around_mixer = _Residual(
            spec.attention_norm, spec.attention_out_norm, multiplier, source
        )
        self._around_ffn = _Residual(spec.ffn_norm, spec.ffn_out_norm, multiplier, source)
        moe, gate, scale = spec.parallel_moe, spec.input_gate, spec.scale
        self._parallel_moe = None if moe is None else ParallelMoe(moe, source)
        self._input_gate = None if gate is None else InputGate(gate, source)
        self._scale = None if scale is None else source.tensor(scale)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(
            *(self._around_mixer, self._mixer, self._around_ffn, self._ffn),
            *(self._parallel_moe, self._input_gate, self._scale),
        )

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
        mixed = self._mixer(self._around_mixer.read(x, residual), batch, cache)
        if keep is not None:
            mixed, residual = mixed[keep], residual[keep]
            inputs = None if inputs is None else inputs[keep]
            if not len(keep):
                return mixed.new_empty(residual.shape), residual
        x = self._around_mixer.scale(self._mixer.out(mixed))
        x = self._ffn(self._around_ffn.read(x, residual))
        if self._parallel_moe is not None:
            x = self._parallel_moe(x, residual)
        x = self._around_ffn.scale(x)
        if self._input_gate is not None:
            assert inputs is not None, "a network without LayerInputs"
            residual += x
            x = self._input_gate(residual, inputs)
        if self._scale is None:
            return x, residual
        residual += x
        residual *= self._scale
        return None, residual

    def store(self, residual: Tensor, batch: ForwardBatch, cache: KVCache) -> None:
        """Store the keys and values of a first layer with attention, and compute no more."""
        assert isinstance(self._mixer, SelfAttention), "a layer with attention"
        self._mixer.store(self._around_mixer.read(None, residual), batch, cache)


class _Residual:
    """Norms and multiplier around one part of a layer."""

    def __init__(
        self,
        norm: AnyNormSpec | None,
        out_norm: AnyNormSpec | None,
        multiplier: float,
        source: WeightSource,
    ) -> None:
        self._norm = None if norm is None else load_norm(norm, source)
        self._out_norm = None if out_norm is None else load_norm(out_norm, source)
        self._multiplier = multiplier
        self._dtype = source.dtype

    @property
    def num_bytes(self) -> int:
        return num_bytes(self._norm, self._out_norm)

    def read(self, x: Tensor | None, residual: Tensor) -> Tensor:
        """Add x to the residual stream in place; return the part's input."""
        if self._norm is not None:
            return self._norm(x, residual)
        if x is not None:
            residual += x
        return residual.to(self._dtype)

    def scale(self, x: Tensor) -> Tensor:
        """Return the part's output, normalized and scaled for the residual stream."""
        if self._out_norm is not None:
            x = self._out_norm.normalize(x)
        return x if self._multiplier == 1.0 else x * self._multiplier


class MtpModule:
    """Module for multi-token prediction; see `MtpSpec`."""

    def __init__(
        self, spec: MtpSpec, index: KVLayerIndex, source: WeightSource, tables: RotaryTables
    ) -> None:
        self.spec = spec
        self._embedding_norm = load_norm(spec.embedding_norm, source)
        self._hidden_norm = load_norm(spec.hidden_norm, source)
        self._projection = spec.projection.load(source)
        layer = _load_layer(spec.layer, index, tables, source)
        assert isinstance(layer, DecoderLayer), "an MTP module has a plain layer"
        self._layer = layer
        self._norm = load_norm(spec.norm, source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        norms = self._embedding_norm, self._hidden_norm, self._norm
        return num_bytes(*norms, self._projection, self._layer)

    def __call__(
        self, embedded: Tensor, states: Tensor, batch: ForwardBatch, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values at the positions of the batch.

        embedded: vectors of the next tokens; states: those of the tokens, in the model's dtype,
        [num_tokens, hidden_size] each. Returns the inputs of the head, and the states for the next
        prediction, in the same shape.
        """
        residual = self._joined(embedded, states)
        x, residual = self._layer(None, residual, batch, cache, None, None)
        normed = self._norm(x, residual)
        return normed, normed if self.spec.repeats_normed else residual.to(normed.dtype)

    def store(self, embedded: Tensor, states: Tensor, batch: ForwardBatch, cache: KVCache) -> None:
        """Store keys and values only; arguments as those of a call."""
        self._layer.store(self._joined(embedded, states), batch, cache)

    def _joined(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Return the residual stream before the layer."""
        parts = self._embedding_norm.normalize(embedded), self._hidden_norm.normalize(states)
        joined = torch.cat(parts[::-1] if self.spec.hidden_first else parts, dim=1)
        return self._projection(joined).float()


class PostNormLayer:
    """Layer of BERT: attention, then feed-forward, each added to its input and normalized.

    The residual stream is the output of the last norm, so that nothing is left to be added.
    """

    def __init__(
        self,
        spec: PostNormLayerSpec,
        index: KVLayerIndex | StateLayerIndex,
        source: WeightSource,
        tables: RotaryTables,
    ) -> None:
        assert isinstance(index, KVLayerIndex), "its mixer is attention"
        self._attention = SelfAttention(spec.mixer, index, source, tables)
        self._attention_norm = LayerNorm(spec.attention_norm, source)
        ffn = spec.ffn
        self._ffn = Mlp(ffn, source) if isinstance(ffn, MlpSpec) else PlainMlp(ffn, source)
        self._ffn_norm = LayerNorm(spec.ffn_norm, source)
        self._dtype = source.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._attention, self._attention_norm, self._ffn, self._ffn_norm)

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
        mixed = self._attention(residual.to(self._dtype), batch, cache)
        if keep is not None:
            mixed, residual = mixed[keep], residual[keep]
            if not len(keep):
                return None, residual
        x = self._attention_norm(self._attention.out(mixed), residual)
        return None, self._ffn_norm(self._ffn(x), x.float()).float()


def _embedding(spec: EmbeddingSpec, source: WeightSource) -> Embedding:
    if isinstance(spec, EncoderEmbeddingSpec):
        return EncoderEmbedding(spec, source)
    return Embedding(spec, source)


def _load_layer(
    spec: Any,
    index: KVLayerIndex | StateLayerIndex,
    tables: RotaryTables,
    source: WeightSource,
) -> Layer:
    return LAYERS[type(spec)](spec, index, source, tables)


def _load_mixer(
    spec: AttentionSpec | RecurrentSpec,
    index: KVLayerIndex | StateLayerIndex,
    source: WeightSource,
    tables: RotaryTables,
) -> SelfAttention | ShortConv | DeltaNet:
    if isinstance(spec, AttentionSpec) and isinstance(index, KVLayerIndex):
        return SelfAttention(spec, index, source, tables)
    if isinstance(spec, ShortConvSpec) and isinstance(index, StateLayerIndex):
        return ShortConv(spec, index, source)
    if isinstance(spec, DeltaNetSpec) and isinstance(index, StateLayerIndex):
        return DeltaNet(spec, index, source)
    raise TypeError(f"no layer computes {type(spec).__name__}")


LoadLayer = Callable[[Any, KVLayerIndex | StateLayerIndex, WeightSource, RotaryTables], Layer]
# Layers by the type of their description; other packages may add their own.
LAYERS: dict[type, LoadLayer] = {
    DecoderLayerSpec: DecoderLayer,
    PostNormLayerSpec: PostNormLayer,
}
