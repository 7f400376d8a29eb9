"""KernelShape: the sizes of one layer, as far as kernels see them."""

from dataclasses import dataclass, replace
from typing import TypedDict

from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import UsageError, option


class LayerShape(TypedDict):
    """`shape`: as `KernelShape`, with the dtype."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    dtype: str


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A layer of the model `name`, its blocks, and the vocabulary it is sampled from.

    Raises `UsageError` naming the flag for sizes that no layer can have.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    block_size: int

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UsageError(f"{option('block_size')} is {self.block_size}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"{option('heads')} {self.num_heads} cannot be divided among {self.num_kv_heads} "
                f"kv heads; give {option('heads')} a multiple of {option('kv_heads')}"
            )

    @classmethod
    def of(
        cls,
        name: str,
        config: ModelConfig,
        block_size: int,
        *,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
    ) -> "KernelShape":
        """Return the shape of a model's layers, with other heads where they are given."""
        given = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        changes = {key: value for key, value in given.items() if value is not None}
        shape = cls(
            name=name,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            block_size=block_size,
        )
        return replace(shape, name=f"{name}, other heads", **changes) if changes else shape

    @property
    def softmax(self) -> Softmax:
        """How scores become weights."""
        return Softmax(float(self.head_dim**-0.5))

    def kv_elements(self, num_tokens: int) -> int:
        """Return the elements of the keys and values of so many tokens."""
        return 2 * num_tokens * self.num_kv_heads * self.head_dim

    def query_elements(self, num_rows: int) -> int:
        """Return the elements of so many queries, and of their answers."""
        return 2 * num_rows * self.num_heads * self.head_dim

    def attention_flops(self, num_pairs: int) -> int:
        """Return the operations of so many (query token, key token) pairs: two products of it."""
        return 4 * num_pairs * self.num_heads * self.head_dim
