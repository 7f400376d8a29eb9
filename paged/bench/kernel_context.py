"""Layers of random keys and values, in scattered blocks and laid out densely."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import KVLayer, Softmax
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import UsageError, option

# A prime: noise with this period begins elsewhere in every block, so that blocks differ and a wrong
# one is noticed. Drawing gigabytes would take longer than measuring.
NOISE_ELEMENTS = 16_777_213
SEED = 0


@dataclass(frozen=True, slots=True)
class KernelContext:
    """One layer's KV memory in scattered blocks, and the tables of its rows.

    key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_dim]. block_tables:
    [num_rows, max_blocks] int32; rows may begin with the same blocks. q: [num_queries, num_heads,
    head_dim].
    """

    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    q: Tensor

    @property
    def layer(self) -> KVLayer:
        """The memory as ops read it."""
        return KVLayer(self.key_cache, self.value_cache)

    def dense(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return keys and values as [num_rows, num_kv_heads, num_tokens, head_dim], without gaps.

        `num_tokens` is the length of every row.
        """
        return self._dense(self.key_cache, num_tokens), self._dense(self.value_cache, num_tokens)

    def _dense(self, cache: Tensor, num_tokens: int) -> Tensor:
        num_rows, (_, num_kv_heads, _, head_dim) = len(self.block_tables), cache.shape
        dense = cache.new_empty(num_rows, num_kv_heads, num_tokens, head_dim)
        for row, table in zip(dense, self.block_tables, strict=True):  # one by one, for memory
            blocks = cache[table.long()].transpose(0, 1)
            row.copy_(blocks.reshape(num_kv_heads, -1, head_dim)[:, :num_tokens])
        return dense


@dataclass(frozen=True, slots=True)
class KernelShape:
    """Sizes of a layer of the model `name`, of a block, and of the vocabulary.

    Raises `UsageError` naming the flag for impossible sizes.
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
        sizes = {
            each.name: getattr(config, each.name)
            for each in fields(cls)
            if each.name not in ("name", "block_size")
        }
        return cls(
            name=f"{name}, other heads" if changes else name,
            block_size=block_size,
            **{**sizes, **changes},
        )

    @property
    def softmax(self) -> Softmax:
        """Softmax settings: scale and cap of the scores."""
        return Softmax(float(self.head_dim**-0.5))

    def kv_elements(self, num_tokens: int) -> int:
        """Return the elements of the keys and values of so many tokens."""
        return 2 * num_tokens * self.num_kv_heads * self.head_dim

    def query_elements(self, num_rows: int) -> int:
        """Return the elements of so many queries, and of their answers."""
        return 2 * num_rows * self.num_heads * self.head_dim

    def attention_flops(self, num_pairs: int) -> int:
        """Return the operations of so many (query token, key token) pairs, two products each."""
        return 4 * num_pairs * self.num_heads * self.head_dim


class KernelContexts:
    """Factory of contexts of one shape, device and dtype."""

    def __init__(self, shape: KernelShape, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.device = device
        self.dtype = dtype
        self.generator = torch.Generator(device).manual_seed(SEED)
        self._noise = self.random(NOISE_ELEMENTS)

    @property
    def attention_shape(self) -> AttentionShape:
        """Inputs for the preparation of attention over one of the contexts."""
        shape = self.shape
        return AttentionShape(
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            self.dtype,
            self.dtype,
            shape.block_size,
        )

    def random(self, *shape: int) -> Tensor:
        """Return normal numbers."""
        values = torch.randn(shape, generator=self.generator, device=self.device)
        return values.to(self.dtype)

    def int32(self, *values: int) -> Tensor:
        """Return the numbers as [len(values)] int32."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def make(
        self, num_rows: int, own_tokens: int, *, shared_tokens: int = 0, num_queries: int
    ) -> KernelContext:
        """Return `num_rows` rows of `own_tokens` each after common ones.

        `shared_tokens` must be whole blocks.
        """
        shape = self.shape
        shared, own = shared_tokens // shape.block_size, -(-own_tokens // shape.block_size)
        assert shared * shape.block_size == shared_tokens, "a block is shared or it is not"
        num_blocks = shared + num_rows * own
        size = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
        scattered = torch.randperm(num_blocks, generator=self.generator, device=self.device).int()
        common = scattered[:shared].expand(num_rows, shared)
        tables = torch.cat([common, scattered[shared:].view(num_rows, own)], dim=1)
        return KernelContext(
            key_cache=self._filled(size, start=0),
            value_cache=self._filled(size, start=NOISE_ELEMENTS // 2),
            block_tables=tables.contiguous(),
            q=self.random(num_queries, shape.num_heads, shape.head_dim),
        )

    def context_bytes(self, num_rows: int, own_tokens: int, shared_tokens: int = 0) -> int:
        """Return the bytes of keys and values of a context."""
        tokens = shared_tokens + num_rows * (own_tokens + self.shape.block_size)
        return self.shape.kv_elements(tokens) * self.dtype.itemsize

    def _filled(self, size: tuple[int, ...], start: int) -> Tensor:
        """Return a tensor of repeated noise that begins at its element `start`."""
        cache = torch.empty(size, dtype=self.dtype, device=self.device)
        flat = cache.view(-1)
        noise, at = self._noise[start:], 0
        while at < len(flat):
            piece = flat[at : at + len(noise)]
            piece.copy_(noise[: len(piece)])
            at, noise = at + len(piece), self._noise
        return cache
