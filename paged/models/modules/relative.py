"""Relative positions in attention to both sides: descriptions, and buckets of distances.

A score depends on the distance of query and key, by one table for all layers (`DistanceBias`) or by
products of queries and keys with vectors of distances (`Disentangled`). Columns of both are buckets
of distances, computed here. `attention_layer` computes the terms.
"""

import math
from dataclasses import dataclass

from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Part,
    StoredLinear,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import LinearSpec
from pagedrun.paged.models.modules.norm import LayerNormSpec


@dataclass(frozen=True, slots=True)
class DistanceBias:
    """Number added to the scaled score of each head by the bucket of the distance.

    table: [num_rows, num_heads], of which the first `num_buckets` rows are used; shared by all
    layers. Half of the buckets are for keys behind the query. Of each half, the first half are
    single distances, the others grow geometrically up to `max_distance`.
    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer", arXiv:1910.10683, section 2.1; and MPNet's code in Transformers.
    """

    table: Parameter
    num_buckets: int = 32
    max_distance: int = 128

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return (self.table,)

    def width(self, num_heads: int) -> int:
        """Return the numbers of activation of a token: none."""
        return 0

    def columns(self, num_positions: int) -> list[int]:
        """Return the bucket of each distance of query and key from 1 - num_positions on."""
        half = self.num_buckets // 2

        def bucket(distance: int) -> int:
            behind = half if distance < 0 else 0
            exact, away = half // 2, abs(distance)
            if away < exact:
                return behind + away
            growth = math.log(away / exact) / math.log(self.max_distance / exact)
            return behind + min(exact + int(growth * (half - exact)), half - 1)

        return [bucket(each) for each in range(1 - num_positions, num_positions)]


@dataclass(frozen=True, slots=True)
class PositionProducts(Part):
    """Products of heads with vectors of `num_positions` distances, which `linear` maps to heads.

    `shares_weights`: the tensors are those of the layer's own keys or queries.
    """

    linear: LinearSpec
    num_positions: int
    shares_weights: bool = False

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the tensors that no other part has."""
        return () if self.shares_weights else self.linear.parameters(stored)

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the mapped vectors, which replace the tensors in memory."""
        return self.num_positions * self.linear.out_features * dtype_bytes

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the linear layer as a checkpoint with the tensors `stored` holds it."""
        return self.linear.linears(stored)


@dataclass(frozen=True, slots=True)
class DistanceVectors(Part):
    """Vectors of distances from -span to span - 1, [2 * span, hidden_size], and their norm.

    They are read to be mapped to heads, and are not in memory afterwards.
    """

    embeddings: Parameter
    norm: LayerNormSpec | None

    @property
    def num_rows(self) -> int:
        """Rows of the table, 2 * span."""
        return self.embeddings.shape[0]

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the table, and the parameters of the norm."""
        norm = () if self.norm is None else self.norm.parameters(stored)
        return self.embeddings, *norm

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True)
class Disentangled:
    """Addends of `q · k`: of the query with a vector of the distance, and of the key with another.

    vectors: shared by all layers. `by_query` multiplies queries by them as keys (c2p), `by_key`
    keys by them as queries (p2c); None without. With `num_buckets`, which is then the span,
    distances from half of it on are in buckets that grow geometrically up to `max_distance`.
    Source: He et al. 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention",
    arXiv:2006.03654, section 3.2; and the code of DeBERTa-v2 in Transformers.
    """

    vectors: DistanceVectors
    by_query: PositionProducts | None
    by_key: PositionProducts | None
    num_buckets: int | None
    max_distance: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.vectors, *self.products

    @property
    def products(self) -> tuple[PositionProducts, ...]:
        """The products that there are: of queries, then of keys."""
        return tuple(each for each in (self.by_query, self.by_key) if each is not None)

    def width(self, num_heads: int) -> int:
        """Return the numbers of activation of a token: copies of its heads, and their products."""
        each = (part.linear.out_features + num_heads * part.num_positions for part in self.products)
        return sum(each)

    def columns(self, num_positions: int) -> list[int]:
        """Return the row of `vectors` of each distance of query and key, from 1 - num_positions
        on."""
        span = self.vectors.num_rows // 2

        def bucket(distance: int) -> int:
            if self.num_buckets is None:
                return distance
            middle, away = self.num_buckets // 2, abs(distance)
            if away <= middle:
                return distance
            growth = math.log(away / middle) / math.log((self.max_distance - 1) / middle)
            return int(math.copysign(math.ceil(growth * (middle - 1)) + middle, distance))

        found = (bucket(each) + span for each in range(1 - num_positions, num_positions))
        return [min(max(each, 0), 2 * span - 1) for each in found]


RelativeSpec = DistanceBias | Disentangled
