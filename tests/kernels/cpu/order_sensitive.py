"""Attention of which the order of summation decides the result.

Two kinds of data, for the two products of attention:

- SCORES: dimensions are paired at random, keys have equal numbers in a pair and queries opposite
  ones. Each exact score is 0; what is computed is the rounding noise of one order of adding up,
  and `scale` makes it so large that it decides who attends to whom;
- VALUES: all keys are 0, so that all weights are 1; tokens are paired at random, and the values of
  a pair are opposite. The exact sum is 0.

Magnitudes spread over 2^-6 to 2^6, so that sums on the way are rounded. RANDOM is neither, and
comes near a float64 reference.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, KVScales
from pagedrun.kernels.reference.kv_cache import quantize


class Kind(StrEnum):
    SCORES = "scores"
    VALUES = "values"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Tokens:
    """q: [num_tokens, num_kv_heads * group, head_dim]; keys, values: [num_tokens, num_kv_heads,
    head_dim]. `scale` is what scores are multiplied by."""

    q: Tensor
    keys: Tensor
    values: Tensor
    scale: float

    @classmethod
    def make(
        cls,
        kind: Kind,
        num_tokens: int,
        *,
        num_kv_heads: int,
        group: int,
        head_dim: int,
        dtype: torch.dtype,
        num_paired: int | None = None,
        seed: int = 0,
    ) -> "Tokens":
        """Return tokens; with VALUES, only the first `num_paired` have values other than 0."""
        generator = torch.Generator().manual_seed(seed)
        q = torch.randn(num_tokens, num_kv_heads * group, head_dim, generator=generator)
        keys, values = (
            torch.randn(num_tokens, num_kv_heads, head_dim, generator=generator) for _ in range(2)
        )
        scale = head_dim**-0.5
        if kind is Kind.SCORES:
            one, other = _pairs(head_dim, generator)
            q *= _spread(q.shape, generator)
            q[..., other] = -q[..., one]
            keys[..., other] = keys[..., one]
            scale = 2.0**15
        elif kind is Kind.VALUES:
            paired = num_tokens if num_paired is None else num_paired
            one, other = _pairs(paired, generator)
            keys.zero_()
            values *= _spread((num_tokens, num_kv_heads, 1), generator)
            values[other] = -values[one]
            values[paired:] = 0
        return cls(q.to(dtype), keys.to(dtype), values.to(dtype), scale)


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV memory of sequences of tokens, and their block tables."""

    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    scales: KVScales | None = None

    @property
    def layer(self) -> KVLayer:
        """Keys and values as ops take them."""
        return KVLayer(self.key_cache, self.value_cache, self.scales)

    def quantised(self, codes: torch.dtype) -> "Cache":
        """Return the same in int8 or float8_e4m3fn; scales, and codes of float8, are NaN where
        nothing is written.

        What cancels goes on doing so: opposite numbers have opposite codes, and the same scale.
        """
        keys, key_scales = quantize(self.key_cache, codes)
        values, value_scales = quantize(self.value_cache, codes)
        if codes is torch.float8_e4m3fn:
            for kept, scales in ((keys, key_scales), (values, value_scales)):
                kept.view(torch.uint8)[scales.isnan()] = 0x7F
        return Cache(keys, values, self.block_tables, KVScales(key_scales, value_scales))

    @classmethod
    def of(
        cls, tokens: Tokens, sequences: list[list[int]], block_size: int, seed: int = 0
    ) -> "Cache":
        """Write sequences, which are lists of tokens, to scattered blocks, NaN all around.

        Blocks of sequences that begin with the same tokens are the same.
        """
        generator = torch.Generator().manual_seed(seed)
        owners: dict[tuple[int, ...], int] = {}  # the block after which tokens
        for sequence in sequences:
            for end in range(block_size, len(sequence) + block_size, block_size):
                owners.setdefault(tuple(sequence[:end]), len(owners))
        num_heads, head_dim = tokens.keys.shape[1:]
        shape = (len(owners) + 2, num_heads, block_size, head_dim)
        keys, values = (torch.full(shape, torch.nan, dtype=tokens.q.dtype) for _ in range(2))
        *scattered, unused, _ = torch.randperm(shape[0], generator=generator).tolist()
        width = -(-max(map(len, sequences)) // block_size)
        tables = torch.full((len(sequences), width), unused, dtype=torch.int32)
        for table, sequence in zip(tables, sequences, strict=True):
            for start in range(0, len(sequence), block_size):
                own = sequence[start : start + block_size]
                block = scattered[owners[tuple(sequence[: start + block_size])]]
                table[start // block_size] = block
                for cache, written in zip(
                    (keys, values), (tokens.keys, tokens.values), strict=True
                ):
                    cache[block, :, : len(own)] = written[own].transpose(0, 1)
        return cls(keys, values, tables)


def _pairs(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    places = torch.randperm(count, generator=generator)
    return places[: count // 2], places[count // 2 : count // 2 * 2]


def _spread(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(-6, 7, shape, generator=generator).float().exp2()
