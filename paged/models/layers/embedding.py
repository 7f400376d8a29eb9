"""Embedding: the table of the tokens' vectors, with its weights."""

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.linear import Linear
from pagedrun.kernels.packed_weight import PackedWeight
from pagedrun.paged.files.gguf.block_type import PACKED_TYPES
from pagedrun.paged.models.network.embedding_spec import EmbeddingSpec
from pagedrun.paged.models.weight_source import WeightSource

_ROWS_AT_ONCE = 1 << 14


class Embedding:
    """Vectors in the dtype of `source`.

    Blocks of a GGUF file are held as they are, if that is how the backend holds weights: what is
    looked up is unpacked each time, and they may stay in their file.
    """

    def __init__(self, spec: EmbeddingSpec, source: WeightSource) -> None:
        self._name, self._source = spec.weight.name, source
        stored = source.stored.get(self._name)
        self._kind = None if stored is None or stored.dtype not in PACKED_TYPES else stored.dtype
        if self._kind is not None:
            blocks = source.read(self._name)
            if source.packs(self._split(blocks[:1])):
                for rows in torch.split(blocks, _ROWS_AT_ONCE):
                    source.require_moderate(self._name, self._split(rows.to(source.device)))
                self._table = source.kept_as_stored(blocks)
                return
            self._kind = None
        self._table = source.tensor(spec.weight)

    @property
    def num_bytes(self) -> int:
        """Bytes of the table as it is held."""
        return self._table.nbytes

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Return the tokens' vectors, [num_tokens, hidden_size]."""
        if self._kind is None:
            return functional.embedding(input_ids, self._table)
        return self._source.kernels.dequantize(
            self._split(self._table[input_ids]), self._source.dtype
        )

    def head(self) -> Linear:
        """Return the product with all vectors."""
        weight = self._table if self._kind is None else self._split(self._table)
        return self._source.pack_parts([weight], None)

    def _split(self, blocks: Tensor) -> PackedWeight:
        assert self._kind is not None
        return self._source.kernels.split_blocks(blocks, self._kind)
