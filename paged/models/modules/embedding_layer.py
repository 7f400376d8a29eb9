"""Embeddings and the per-layer inputs of Gemma, with weights."""

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.ops import Linear
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.paged.files.gguf import PACKED_TYPES
from pagedrun.paged.models.checkpoint.weight_source import WeightSource, num_bytes
from pagedrun.paged.models.modules.embedding import (
    EmbeddingSpec,
    EncoderEmbeddingSpec,
    InputGateSpec,
    LayerInputsSpec,
)
from pagedrun.paged.models.modules.mlp_layer import activation
from pagedrun.paged.models.modules.norm_layer import LayerNorm, Norm

_ROWS_AT_ONCE = 1 << 14


class Embedding:
    """Token embedding with its table, in the dtype of `source`.

    Blocks of a GGUF file stay quantized, possibly in the mapped file, if the backend has kernels
    for them; rows are dequantized at each lookup.
    """

    def __init__(self, spec: EmbeddingSpec, source: WeightSource) -> None:
        self._name, self._source = spec.weight.name, source
        stored = source.stored.get(self._name)
        self._kind = None if stored is None or stored.dtype not in PACKED_TYPES else stored.dtype
        if self._kind is not None:
            blocks = source.read(self._name)
            if source.packs(self._split(blocks[:1])):
                for rows in torch.split(blocks, _ROWS_AT_ONCE):
                    source.require_finite(self._name, self._split(rows.to(source.device)))
                self._table = source.mapped_as_stored(blocks)
                return
            self._kind = None
        self._parameter = spec.weight
        self._table = self._looked_up(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the table in memory."""
        return self._table.nbytes

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Return the vectors of tokens, [num_tokens, hidden_size]."""
        if self._kind is None:
            return functional.embedding(input_ids, self._table).to(self._source.dtype)
        return self._source.kernels.dequantize(
            self._split(self._table[input_ids]), self._source.dtype
        )

    def of_tokens(self, input_ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """Return the vectors of tokens, [num_tokens, hidden_size]; here of the ids alone.

        input_ids, positions: [num_tokens] int64. types: [num_tokens] int64, None: all are 0.
        """
        return self(input_ids)

    def head(self, source: WeightSource) -> Linear:
        """Return the tied head: the product with the table."""
        return source.layer(lambda: source.pack_parts([self._weight(source)], None))

    def _weight(self, source: WeightSource) -> PackedWeight | Tensor:
        if self._kind is not None:
            return self._split(self._table)
        is_cast = self._table.dtype == source.dtype
        return self._table if is_cast else source.tensor(self._parameter)

    def _looked_up(self, source: WeightSource) -> Tensor:
        """Return the table in the dtype of `source`; beside streamed weights a mapped one as it is
        stored, if that is no larger.

        Rows are cast at each lookup then, so that no copy of the table takes memory.
        """
        stored = source.stored.get(self._name)
        if (
            source.is_mapped
            and source.is_streamed
            and (stored is None or stored.dtype not in PACKED_TYPES)
        ):
            table = source.read(self._name)
            if table.dtype.itemsize <= source.dtype.itemsize:
                return source.mapped_as_stored(table)
        return source.tensor(self._parameter)

    def _split(self, blocks: Tensor) -> PackedWeight:
        assert self._kind is not None
        return self._source.kernels.split_blocks(blocks, self._kind)


class EncoderEmbedding(Embedding):
    """Embedding of tokens, positions and token types, normalized, and projected if it is to be."""

    def __init__(self, spec: EncoderEmbeddingSpec, source: WeightSource) -> None:
        super().__init__(spec, source)
        positions, types, norm = spec.positions, spec.types, spec.norm
        self._first = spec.first_position
        self._positions = None if positions is None else source.tensor(positions)
        self._types = None if types is None else source.tensor(types)
        self._norm = None if norm is None else LayerNorm(norm, source)
        self._projection = None if spec.projection is None else spec.projection.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of tables, norm and projection in memory."""
        others = (self._positions, self._types, self._norm, self._projection)
        return super().num_bytes + num_bytes(*others)

    def of_tokens(self, input_ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """Return the normalized sums, projected, in the model's dtype; see `Embedding`."""
        total = self(input_ids).float()
        if self._types is not None:
            total += self._types[torch.zeros_like(input_ids) if types is None else types]
        if self._positions is not None:
            total += self._positions[positions + self._first]
        norm, project = self._norm, self._projection
        summed = total.to(self._source.dtype) if norm is None else norm.normalize(total)
        return summed if project is None else project(summed)


class LayerInputs:
    """Per-layer inputs with weights."""

    def __init__(self, spec: LayerInputsSpec, source: WeightSource) -> None:
        self._spec = spec
        # Mapped: a table of gigabytes, and a step reads a few rows.
        self._embedding = source.kept(spec.embedding.weight)
        self._projection = spec.projection.load(source)
        self._norm = Norm(spec.norm, source)
        self._scale = torch.tensor(spec.embedding.scale, dtype=source.dtype).item()

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._embedding, self._projection, self._norm)

    def __call__(self, input_ids: Tensor, embedded: Tensor) -> Tensor:
        """Return the inputs of the layers, [num_layers, num_tokens, size] in the model's dtype.

        input_ids: [num_tokens] int64. embedded: [num_tokens, hidden_size] in the model's dtype,
        the input of the first layer.
        """
        spec = self._spec
        projected = self._projection(embedded) * spec.projection_scale
        inputs = self._norm.normalize(projected.view(-1, spec.size)).view(projected.shape)
        inputs += functional.embedding(input_ids, self._embedding) * self._scale
        inputs *= spec.scale
        return inputs.view(-1, spec.num_layers, spec.size).transpose(0, 1)


class InputGate:
    """`out_norm(out(activation(gate(residual)) * input))`."""

    def __init__(self, spec: InputGateSpec, source: WeightSource) -> None:
        self._gate = spec.gate.load(source)
        self._out = spec.out.load(source)
        self._out_norm = Norm(spec.out_norm, source)
        self._activate = activation(spec.activation, source.kernels)
        self._dtype = source.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._gate, self._out, self._out_norm)

    def __call__(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """Return the addend of the residual stream, in the model's dtype.

        residual: [num_tokens, hidden_size] float32. inputs: [num_tokens, size].
        """
        gate = self._gate(residual.to(self._dtype))
        return self._out_norm.normalize(self._out(self._activate(torch.cat([gate, inputs], dim=1))))
