"""Terms of attention by the distance of query and key, with weights."""

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import RelativeTerms
from pagedrun.kernels.ops import GroupedLinear
from pagedrun.paged.models.checkpoint.weight_source import WeightSource, num_bytes
from pagedrun.paged.models.modules.norm_layer import LayerNorm
from pagedrun.paged.models.modules.relative import (
    Disentangled,
    DistanceBias,
    PositionProducts,
    RelativeSpec,
)


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
