"""SelfAttention: attention over the cache, with its weights."""

import torch
from torch import Tensor

from pagedrun.kernels.head_norms import HeadNorms
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.layers.rotary_tables import RotaryTables
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.weight_source import WeightSource


class SelfAttention:
    """Queries, keys and values as one product; then the cache; `out` maps the result back.

    `index` is the layer's place in the cache.
    """

    def __init__(
        self, spec: AttentionSpec, index: int, source: WeightSource, tables: RotaryTables
    ) -> None:
        def norm(norm_spec: NormSpec | None) -> Norm | None:
            return None if norm_spec is None else Norm(norm_spec, source)

        self._spec = spec
        self._index = index
        self._kernels = source.kernels
        self._cos_sin = tables.table(spec.rope, spec.head_dim)
        self._qkv = spec.qkv.load(source)
        self.out = spec.out.load(source)
        self._q_norm, self._k_norm = norm(spec.q_norm), norm(spec.k_norm)
        self._head_norms: HeadNorms | None = None
        if self._q_norm is not None and self._k_norm is not None and spec.q_norm is not None:
            self._head_norms = HeadNorms(self._q_norm.weight, self._k_norm.weight, spec.q_norm.eps)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        norms = sum(norm.num_bytes for norm in (self._q_norm, self._k_norm) if norm is not None)
        return self._qkv.num_bytes + self.out.num_bytes + norms

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Store keys and values, then attend: prompt tokens and generated ones by their own path.

        x: [num_tokens, hidden_size]. Returns [num_tokens, num_heads * head_dim], what `out` takes.
        """
        spec = self._spec
        layer = cache.layer(self._index)
        q = self._kernels.rotary_store(
            self._qkv(x),
            self._cos_sin,
            batch.positions,
            batch.slots,
            layer,
            self._head_norms,
        )
        attention, scale, window = batch.attention, spec.scale, spec.window
        parts: list[Tensor] = []
        if batch.has_prefill:
            prompts = q[: batch.num_prefill_tokens]
            parts.append(attention.prefill(prompts, layer, scale, window))
        if batch.has_decode:
            generated = q[batch.num_prefill_tokens :]
            # With a sliding window no part is shared, since each row's begins elsewhere.
            prefix = attention.prefix(generated, layer, scale) if window is None else None
            parts.append(attention.decode(generated, layer, scale, window, prefix))
        return torch.cat(parts).flatten(1) if len(parts) > 1 else parts[0].flatten(1)
