"""Attention of single queries over keys and values in the KV memory."""

import math

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention_inputs import DecodeInputs
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.attention.prefix_groups import PrefixState
from pagedrun.kernels.attention.softmax import Softmax


def decode_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    rows: DecodeInputs,
    softmax: Softmax,
    window: int | None,
    prefix: PrefixState | None = None,
) -> Tensor:
    """Return `softmax(scores) @ v` for each query row over its own visible keys; see `Softmax`.

    q: [num_rows, num_heads, head_dim]. block_tables: [num_tables, max_blocks] int32, block ids in
    order of position. rows: which table a row reads (rows may share one), and its context: row r
    sees positions 0 .. context_lens[r] - 1, or only the last `window` of them; 0 marks an empty
    slot, whose result is zero and whose table is not read. The groups of `rows` are not looked at.
    Query head h reads kv head `h // (num_heads / num_kv_heads)`. `prefix` holds what
    `prefix_attention` made of a row's first partitions; only the rest is read then. It goes with no
    window.

    Returns [num_rows, num_heads, head_dim] in the dtype of `q`.
    """
    out = torch.zeros_like(q)
    for row, (table, length) in enumerate(zip(rows.table_rows, rows.context_lens, strict=True)):
        last = int(length)
        if last == 0:
            continue
        first = 0 if window is None else max(0, last - window)
        if prefix is not None:
            first = int(prefix.num_partitions[row]) * PARTITION_TOKENS
        context = gather_context(layer, block_tables[table], last, q.dtype)
        key, value = (each[:, first:] for each in context)
        query = q[row].to(key.dtype).view(len(key), -1, q.shape[-1])  # [kv_heads, group, head_dim]
        scores = score(query @ key.transpose(1, 2), softmax)
        if prefix is None:
            out[row] = (weigh(scores, softmax) @ value).view(q.shape[1:])
        else:
            out[row] = _continue(scores, value, prefix, row, softmax)
    return out


def _continue(
    scores: Tensor, value: Tensor, prefix: PrefixState, row: int, softmax: Softmax
) -> Tensor:
    """Return the attention of one row over its prefix and the keys behind it.

    scores: [kv_heads, group, num_keys], value: [kv_heads, num_keys, head_dim].
    """
    powers = (scores * math.log2(math.e)).flatten(0, 1)  # [num_heads, num_keys]
    peak = torch.maximum(prefix.peaks[row], powers.amax(dim=-1))
    weights, old = torch.exp2(powers - peak[:, None]), torch.exp2(prefix.peaks[row] - peak)
    own = (weights.view(scores.shape) @ value).flatten(0, 1)
    total = prefix.totals[row] * old[:, None] + own
    mass = prefix.masses[row] * old + weights.sum(dim=-1)
    if softmax.sinks is not None:
        mass = mass + torch.exp2(softmax.sinks * math.log2(math.e) - peak)
    return total / mass[:, None]


def score(products: Tensor, softmax: Softmax) -> Tensor:
    """Return the scores of products `q · k`."""
    scores, softcap = products * softmax.scale, softmax.softcap
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def weigh(scores: Tensor, softmax: Softmax) -> Tensor:
    """Return the weights of scores [kv_heads, group, .., num_keys], those of all that is seen."""
    if softmax.sinks is None:
        return torch.softmax(scores, dim=-1)
    sinks = softmax.sinks.to(scores.dtype).view(*scores.shape[:2], *[1] * (scores.dim() - 2))
    joined = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    return torch.softmax(joined, dim=-1)[..., :-1]


def gather_context(
    layer: KVLayer, block_table: Tensor, num_tokens: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return keys and values of a table's first tokens, [num_kv_heads, num_tokens, head_dim] each.

    block_table: [max_blocks] int32. The results are float32, or float64 where the cache or `dtype`,
    that of the queries, is float64.
    """
    keys, values, scales = layer
    key_scales, value_scales = (None, None) if scales is None else (scales.keys, scales.values)
    return (
        _gather(keys, key_scales, block_table, num_tokens, dtype),
        _gather(values, value_scales, block_table, num_tokens, dtype),
    )


def _gather(
    cache: Tensor,
    scales: Tensor | None,
    block_table: Tensor,
    num_tokens: int,
    dtype: torch.dtype,
) -> Tensor:
    block_size = cache.shape[2]
    num_blocks = -(-num_tokens // block_size)
    block_ids = block_table[:num_blocks].long()
    wide = torch.float64 if torch.float64 in (cache.dtype, dtype) else torch.float32
    blocks = cache[block_ids].to(wide)
    if scales is not None:
        blocks = blocks * scales[block_ids].to(wide).unsqueeze(-1)
    shape = (cache.shape[1], num_blocks * block_size, cache.shape[3])
    return blocks.transpose(0, 1).reshape(shape)[:, :num_tokens]
