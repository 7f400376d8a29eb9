"""Causal attention of prompt chunks over the KV memory, their own part included."""

import torch
from torch import Tensor

from pagedrun.kernels.kv_scales import KVScales
from pagedrun.kernels.reference.decode_attention import cap, gather_context


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    chunk_starts: Tensor,
    table_rows: Tensor,
    first_positions: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """Return causal attention for chunks of consecutive queries, each over its own context.

    q: [num_tokens, num_heads, head_dim], the chunks one after another. key_cache, value_cache:
    [num_blocks, num_kv_heads, block_size, head_dim]; the chunks' own keys and values are in them.
    block_tables: [num_tables, max_blocks] int32. chunk_starts: [num_chunks + 1] int32, chunk c is
    rows chunk_starts[c] .. chunk_starts[c + 1] - 1. table_rows: [num_chunks] int32, the table each
    chunk reads. first_positions: [num_chunks] int32, the position of a chunk's first query.

    The query at position p sees positions 0 .. p, or only the last `window` of them. Slots beyond
    a chunk's last position are never read into the result. A NaN or infinity in a key or value
    makes the queries that see it NaN, and no others.

    `softcap` and `scales` are as in `decode_attention`.
    Returns [num_tokens, num_heads, head_dim] in the dtype of `q`.
    """
    out = torch.empty_like(q)
    starts = chunk_starts.tolist()
    key_scales, value_scales = (None, None) if scales is None else (scales.keys, scales.values)
    for chunk, (table, first) in enumerate(zip(table_rows, first_positions.tolist(), strict=True)):
        rows = slice(starts[chunk], starts[chunk + 1])
        num_queries = rows.stop - rows.start
        own = (block_tables[table], first + num_queries)
        key = gather_context(key_cache, *own, key_scales, q.dtype)
        value = gather_context(value_cache, *own, value_scales, q.dtype)
        positions = torch.arange(first + num_queries, device=q.device)
        distance = positions[first:, None] - positions[None, :]  # [num_queries, num_keys]
        visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        # [num_queries, heads, dim] -> [kv_heads, group, num_queries, dim]
        query = torch.unflatten(q[rows].to(key.dtype).transpose(0, 1), 0, (len(key), -1))
        scores = cap(query @ key.transpose(1, 2).unsqueeze(1) * scale, softcap)
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        finite = (key.isfinite() & value.isfinite()).all(dim=-1)  # [kv_heads, num_keys]
        spoiled = (visible & ~finite[:, None]).any(dim=-1)  # [kv_heads, num_queries]
        # Without this, a weight of 0 times NaN would be NaN for queries that do not see the key.
        value = value.where(finite.unsqueeze(-1), 0.0)
        attended = weights @ value.unsqueeze(1)
        attended = attended.masked_fill(spoiled[:, None, :, None], torch.nan)
        out[rows] = attended.flatten(0, 1).transpose(0, 1)
    return out
