"""Self-attention over the KV cache.

Prompt tokens take the prefill path and generated tokens the decode path, since the two do not
round alike; keys and values of all tokens of the batch are in the cache before either reads it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer, RelativeTerms, Softmax
from pagedrun.kernels.ops import GroupedLinear
from pagedrun.paged.cache.cache_spec import KVLayerIndex
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.checkpoint.weight_source import WeightSource, num_bytes
from pagedrun.paged.models.model import ForwardBatch, GroupBatch
from pagedrun.paged.models.modules.attention import AttentionSpec
from pagedrun.paged.models.modules.norm_layer import LayerNorm, Norm
from pagedrun.paged.models.modules.relative import (
    Disentangled,
    DistanceBias,
    PositionProducts,
    RelativeSpec,
)
from pagedrun.paged.models.modules.rotary_tables import RotaryTables


class SelfAttention:
    """Self-attention with weights; `out` is applied by the caller.

    `index` is the index of its keys and values in the cache, or of those of its source layer.
    """

    def __init__(
        self, spec: AttentionSpec, index: KVLayerIndex, source: WeightSource, tables: RotaryTables
    ) -> None:
        self._spec = spec
        self._index = index
        self._kernels = source.kernels
        sinks = None if spec.sinks is None else source.tensor(spec.sinks)
        self._softmax = Softmax(spec.scale, spec.softcap, sinks)
        self._cos_sin = tables.table(spec.rope, spec.head_dim)
        self._query_scaling = (
            None if spec.query_scaling is None else tables.factors(spec.query_scaling)
        )
        self._qkv = spec.qkv.load(source)
        self.out = spec.out.load(source)
        self._norms = tuple(Norm(norm, source) for norm in (spec.q_norm, spec.k_norm) if norm)
        self._head_norms: HeadNorms | None = None
        if spec.q_norm is not None and not spec.normalizes_all_heads:
            # A layer without keys has no norm of keys: the last norm is that of queries.
            q_norm, k_norm = self._norms[0].weight, self._norms[-1].weight
            self._head_norms = HeadNorms(q_norm, k_norm, spec.q_norm.eps, spec.norms_after_rotation)
        self._relative = None
        if spec.relative is not None:
            self._relative = load_terms(
                spec.relative, tables.num_positions, spec.num_heads, spec.scale, source
            )
        self._ones = torch.ones(spec.head_dim, dtype=source.dtype, device=source.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._qkv, self.out, *self._norms, self._softmax.sinks, self._relative)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Store keys and values, then attend.

        x: [num_tokens, hidden_size]. Returns [num_tokens, num_heads * head_dim], the input of
        `out`.
        """
        layer, group = cache.layer(self._index), batch.groups[self._index.group]
        q, gate, qkv = self._queries(x, batch, cache)
        softmax = self._softmax
        if self._relative is not None:
            keys = torch.tensor_split(qkv, 3, dim=1)[1].view(q.shape)
            softmax = replace(softmax, relative=self._relative(q, keys))
        results = attend(q, batch, group, layer, softmax, self._spec.window)
        return results if gate is None else self._kernels.sigmoid_mul(results, gate)

    def store(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> None:
        """Store keys and values; x: [num_tokens, hidden_size]."""
        self._queries(x, batch, cache)

    def _queries(
        self, x: Tensor, batch: ForwardBatch, cache: KVCache
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Store keys and values; return queries [num_tokens, num_heads, head_dim], the gate, and
        queries, keys and values as they are projected."""
        spec, index = self._spec, self._index
        qkv, gate = self._qkv(x), None
        if spec.has_gate:
            gate, qkv = torch.tensor_split(qkv, [spec.num_heads * spec.head_dim], dim=1)
        slots = batch.groups[index.group].slots
        return self._stored(qkv, batch.positions, slots, cache.layer(index)), gate, qkv

    def _stored(self, qkv: Tensor, positions: Tensor, slots: Tensor, layer: KVLayer) -> Tensor:
        """Write keys and values to the layer; return queries [num_tokens, num_heads, head_dim]."""
        spec = self._spec
        if spec.normalizes_all_heads:
            q_norm, k_norm = self._norms
            sizes = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
            q, k, v = torch.split(qkv, [size * spec.head_dim for size in sizes], dim=1)
            qkv = torch.cat([q_norm.normalize(q), k_norm.normalize(k), v], dim=1)
        if spec.source is not None:
            layer = layer.without_heads
        elif spec.value_norm_eps is not None:
            qkv = self._with_normalized_values(qkv, spec.value_norm_eps)
        q = self._kernels.rotary_store(
            qkv, self._cos_sin, positions, slots, layer, self._head_norms
        )
        if self._query_scaling is None:
            return q
        return (q * self._query_scaling[positions][:, None, None]).to(q.dtype)

    def _with_normalized_values(self, qkv: Tensor, eps: float) -> Tensor:
        """Return queries, keys and normalized values side by side; may write to `qkv`."""
        spec = self._spec
        # The last columns: the values, or the keys if these are the values.
        values = qkv[:, -spec.num_kv_heads * spec.head_dim :]
        heads = values.reshape(-1, spec.head_dim)
        normalized = self._kernels.rms_norm(heads, self._ones, eps).view(values.shape)
        if spec.keys_are_values:
            return torch.cat([qkv, normalized], dim=1)
        values.copy_(normalized)
        return qkv


def attend(
    q: Tensor,
    batch: ForwardBatch,
    group: GroupBatch,
    layer: KVLayer,
    softmax: Softmax,
    window: int | None,
) -> Tensor:
    """Return the results of the heads side by side, [num_tokens, num_heads * head_dim].

    q: [num_tokens, num_heads, head_dim]. `layer` already holds the keys and values of the batch;
    `group` is its KV group.
    """
    attention = group.attention
    parts: list[Tensor] = []
    if batch.has_prefill:
        prompts = q[: batch.num_prefill_tokens]
        parts.append(attention.prefill(prompts, layer, softmax, window))
    if batch.has_decode:
        generated = q[batch.num_prefill_tokens :]
        # No shared prefix with a sliding window, which begins at another token in each row.
        prefix = None
        if window is None:
            prefix = attention.prefix(generated, layer, softmax)
        parts.append(attention.decode(generated, layer, softmax, window, prefix))
    return torch.cat(parts).flatten(1) if len(parts) > 1 else parts[0].flatten(1)


class DistanceTable:
    """One number for each head and bucket of distances.

    columns: of each distance, int32. scale: of scores; the numbers are added to scaled ones.
    """

    def __init__(
        self, spec: DistanceBias, columns: Tensor, scale: float, source: WeightSource
    ) -> None:
        table = source.tensor(spec.table)
        # The terms are added to products, before the scale: the same number if that is a power of
        # 2, as of heads of 64.
        by_head = (table.float() / scale).to(source.dtype).T.contiguous()
        self._table, self._columns = by_head[None], columns

    @property
    def num_bytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def __call__(self, q: Tensor, k: Tensor) -> RelativeTerms:
        """Return the same terms for all texts; q, k: [num_tokens, num_heads, head_dim]."""
        return RelativeTerms(self._columns, self._table.expand(len(q), -1, -1))


class DisentangledTerms:
    """Products of queries and keys with vectors of distances.

    The vectors are mapped to heads once, while the layer is loaded, and are then the weights of one
    linear layer for each head. Their rows are invariant, as all terms are. columns: of each
    distance, int32.
    """

    def __init__(
        self,
        spec: Disentangled,
        columns: Tensor,
        num_heads: int,
        source: WeightSource,
    ) -> None:
        self._spec, self._num_heads, self._columns = spec, num_heads, columns
        self._products: tuple[GroupedLinear, ...] = ()
        if spec.products:
            self._products = source.layer(lambda: self._packed(source))

    @property
    def num_bytes(self) -> int:
        """Bytes of the mapped vectors."""
        return num_bytes(*self._products)

    def _packed(self, source: WeightSource) -> tuple[GroupedLinear, ...]:
        spec = self._spec
        vectors, norm = source.tensor(spec.vectors.embeddings), spec.vectors.norm
        if norm is not None:
            vectors = LayerNorm(norm, source).normalize(vectors.float())

        def packed(product: PositionProducts) -> GroupedLinear:
            # Not `LinearSpec.load`, which would be a layer of its own.
            mapped = product.linear.method.load(product.linear, source)(vectors)
            heads = mapped.view(len(vectors), self._num_heads, -1).transpose(0, 1).contiguous()
            return source.kernels.pack_grouped_linear([list(heads)])

        return tuple(packed(each) for each in spec.products)

    def __call__(self, q: Tensor, k: Tensor) -> RelativeTerms:
        """Return the terms of texts; q, k: [num_tokens, num_heads, head_dim] in the model's
        dtype."""
        starts = self._starts(q)
        inputs = (q, k) if len(self._products) == 2 else (q if self._spec.by_query else k,)
        tables = [
            # Rows of one head are neighbors, for their weights.
            product(x.transpose(0, 1).reshape(-1, x.shape[2]), starts)
            .view(self._num_heads, len(x), -1)
            .transpose(0, 1)
            for product, x in zip(self._products, inputs, strict=True)
        ]
        by_query = tables.pop(0) if self._spec.by_query is not None else None
        return RelativeTerms(self._columns, by_query, tables.pop() if tables else None)

    def _starts(self, q: Tensor) -> Tensor:
        """Return the first row of each head, and the number of rows, [num_heads + 1] int64."""
        return torch.arange(self._num_heads + 1, device=q.device) * len(q)


def load_terms(
    spec: RelativeSpec, num_positions: int, num_heads: int, scale: float, source: WeightSource
) -> DistanceTable | DisentangledTerms:
    """Return the terms of a layer with weights, for texts of up to `num_positions` tokens."""
    numbers = torch.tensor(spec.columns(num_positions), dtype=torch.int32)
    columns = numbers.to(source.device)
    if isinstance(spec, DistanceBias):
        return DistanceTable(spec, columns, scale, source)
    return DisentangledTerms(spec, columns, num_heads, source)
