"""What kernels must know to prepare the attention of a model over its cache."""

from pagedrun.kernels.attention import AttentionShape
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.model import Model


def attention_shapes(model: Model, cache: KVCache) -> tuple[AttentionShape, ...]:
    """Return heads and dtypes of each group of layers."""
    return tuple(model.attention_shape(group, dtype) for group, dtype in enumerate(cache.dtypes))
