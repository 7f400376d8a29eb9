"""What kernels must know to prepare the attention of a model over its cache."""

from dataclasses import replace

from pagedrun.kernels.attention.attention import AttentionShape
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.model import Model


def attention_shapes(model: Model, cache: KVCache) -> tuple[AttentionShape, ...]:
    """Return heads, dtypes and block size of each group of layers."""
    return tuple(
        replace(model.attention_shape(group, dtype), block_size=cache.block_size)
        for group, dtype in enumerate(cache.dtypes)
    )
