"""ModelShape: as much of a model as says how many bytes a token takes."""

from dataclasses import dataclass, replace
from typing import Any

from pagedrun.paged.bench.memory.memory_figures import TokenShape
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The layers and the heads of keys and values of a model, and what they are stored in.

    `dtype` is a key of `DTYPE_BYTES` or of `KV_DTYPES`. The defaults are the usual example for the
    price of a token: a kv head for each query head, 512 KiB in all.
    """

    name: str = "llama-2-7b"
    num_layers: int = 32
    num_kv_heads: int = 32
    head_dim: int = 128
    dtype: str = "float16"

    @classmethod
    def of_config(cls, name: str, config: ModelConfig) -> "ModelShape":
        """Return the shape of a model, stored in the dtype that its weights were meant for.

        Raises `UsageError` for one whose layers keep different things of a token.
        """
        heads = list(config.network.attentions.values())  # recurrent layers keep nothing of a token
        if len({(each.num_kv_heads, each.head_dim, each.source is None) for each in heads}) > 1:
            raise UsageError(
                f"{name} has layers with different numbers of bytes per token, which this "
                f"benchmark does not support; choose a {option('shape')} with uniform layers"
            )
        return cls(name, len(heads), config.num_kv_heads, config.head_dim, config.dtype)

    def changed(self, **changes: Any) -> "ModelShape":
        """Return the shape with other fields where they are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, name=f"{self.name}, changed", **given) if given else self

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, scales included."""
        spec = KVCacheSpec(self.num_layers, self.num_kv_heads, self.head_dim, "float32")
        return spec.stored_as(self.dtype).bytes_per_token

    def to_dict(self) -> TokenShape:
        """Return the fields and what a token takes, as a result states them."""
        return {
            "name": self.name,
            "num_layers": self.num_layers,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "bytes_per_token": self.bytes_per_token,
        }
