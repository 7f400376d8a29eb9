"""Which groups of layers a model has, by what they keep in the pool."""

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.models.model_config import ModelConfig


def kv_cache_specs(config: ModelConfig, dtype: str) -> tuple[KVCacheSpec, ...]:
    """Return the groups of a model whose keys and values are stored in `dtype`, torch's name.

    One group so far, whatever the layers' windows: every block is kept until its sequence ends.
    """
    windows = [window for window in config.windows if window is not None]
    looks_back = max(windows) if windows and len(windows) == config.num_layers else None
    return (
        KVCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, dtype, looks_back),
    )
