"""Heads: how many a layer's attention has, and of what size."""

from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.values.errors import ModelError


@dataclass(frozen=True, slots=True)
class Heads:
    """`num_heads` queries a token, of `head_dim`, that share `num_kv_heads` keys and values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def from_json(
        cls, config: JsonObject, *, num_kv_heads: int | None = None, head_dim: int | None = None
    ) -> "Heads":
        """Read them from config.json; what a family assumes where it is silent may be given.

        None: as many key heads as query heads, and heads of hidden_size / num_heads. Raises
        `ModelError` for numbers that do not go together.
        """
        hidden_size = config.integer("hidden_size", 1, 2**20)
        num_heads = config.integer("num_attention_heads", 1, 2**14)
        # null means one key head per query head; silence means the family's default.
        silent = "num_key_value_heads" not in config and num_kv_heads is not None
        default = num_kv_heads if silent else num_heads
        num_kv_heads = config.integer("num_key_value_heads", 1, 2**14, default)
        if num_heads % num_kv_heads:
            raise config.error(
                "num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}"
            )
        if not config.has("head_dim") and head_dim is None and hidden_size % num_heads:
            raise config.error(
                "num_attention_heads",
                f"a divisor of hidden_size, {hidden_size}, without a head_dim",
            )
        head_dim = config.integer("head_dim", 1, 2**12, head_dim or hidden_size // num_heads)
        if head_dim % 2:
            raise ModelError(
                f"{config.origin}: head_dim is {head_dim} (given, or hidden_size / "
                "num_attention_heads); it must be even, because rotary embeddings rotate pairs"
            )
        return cls(num_heads, num_kv_heads, head_dim)
