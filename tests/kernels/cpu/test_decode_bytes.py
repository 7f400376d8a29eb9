"""Decode attention gives a row the same bytes whatever the block size and whoever runs beside it.

Keys and values are read four at a time where a block has four more of them, else one at a time.
"""

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, Softmax
from pagedrun.kernels.cpu.backend import CpuBackend

NUM_TOKENS = 300
BLOCK_SIZES = [16, 1, 2, 3, 5, 64]


def in_blocks(tokens: Tensor, table: Tensor, block_size: int) -> Tensor:
    """Return [kv heads, tokens, ...] as blocks [blocks, kv heads, block size, ...]."""
    num_heads, num_tokens = tokens.shape[:2]
    blocks = torch.zeros(num_heads, len(table) * block_size, *tokens.shape[2:], dtype=tokens.dtype)
    blocks[:, :num_tokens] = tokens
    blocks = blocks.view(num_heads, len(table), block_size, *tokens.shape[2:]).transpose(0, 1)
    placed = torch.empty_like(blocks, memory_format=torch.contiguous_format)
    placed[table.long()] = blocks
    return placed


@pytest.mark.parametrize(
    ("group", "head_dim", "window"), [(1, 64, None), (2, 96, None), (3, 40, None), (2, 64, 200)]
)
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        pytest.param(torch.float32, torch.float8_e4m3fn, marks=pytest.mark.long),
        pytest.param(torch.bfloat16, torch.int8, marks=pytest.mark.long),
    ],
)
def test_block_sizes_give_the_same_bytes(
    dtype: torch.dtype, cache_dtype: torch.dtype, group: int, head_dim: int, window: int | None
) -> None:
    torch.manual_seed(0)
    keys, values = (torch.randn(2, NUM_TOKENS, head_dim) for _ in range(2))
    scales = [torch.rand(2, NUM_TOKENS) * 0.02 for _ in range(2)]
    q = torch.randn(2, 2 * group, head_dim).to(dtype)
    results = []
    for block_size in BLOCK_SIZES:
        table = torch.randperm(-(-NUM_TOKENS // block_size)).to(torch.int32)
        factor = 40 if cache_dtype.itemsize == 1 else 1
        cache = [
            in_blocks((each * factor).to(cache_dtype), table, block_size) for each in (keys, values)
        ]
        of_codes = KVScales(*(in_blocks(each, table, block_size) for each in scales))
        layer = KVLayer(cache[0], cache[1], of_codes if factor > 1 else None)
        rows = DecodeInputs(torch.zeros(2, dtype=torch.int32), torch.tensor([300, 43]).int())
        rest = (layer, table[None], rows, Softmax(head_dim**-0.5), window)
        results.append(CpuBackend.decode_attention(q, *rest))
        second = DecodeInputs(torch.zeros(1, dtype=torch.int32), torch.tensor([43]).int())
        alone = CpuBackend.decode_attention(q[1:], layer, table[None], second, *rest[3:])
        assert torch.equal(alone, results[-1][1:])
    for block_size, result in zip(BLOCK_SIZES, results, strict=True):
        assert torch.equal(result, results[0]), block_size
