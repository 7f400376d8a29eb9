"""Causal attention of prompt chunks over the KV memory, their own part included."""

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention_inputs import PrefillInputs
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.reference.attention.decode_attention import gather_context, score, weigh


def prefill_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    chunks: PrefillInputs,
    softmax: Softmax,
    window: int | None,
) -> Tensor:
    """Return causal attention for chunks of consecutive queries, each over its own context.

    q: [num_tokens, num_heads, head_dim], the chunks one after another: chunk c is rows
    chunks.chunk_starts[c] .. chunks.chunk_starts[c + 1] - 1. The chunks' own keys and values are in
    the layer. block_tables: [num_tables, max_blocks] int32.

    The query at position p sees positions 0 .. p, or only the last `window` of them. Slots beyond
    a chunk's last position are never read into the result. A NaN or infinity in a key or value
    makes the queries that see it NaN, and no others.

    Returns [num_tokens, num_heads, head_dim] in the dtype of `q`.
    """
    out = torch.empty_like(q)
    starts, firsts = chunks.chunk_starts.tolist(), chunks.first_positions.tolist()
    for chunk, (table, first) in enumerate(zip(chunks.table_rows, firsts, strict=True)):
        rows = slice(starts[chunk], starts[chunk + 1])
        num_queries = rows.stop - rows.start
        key, value = gather_context(layer, block_tables[table], first + num_queries, q.dtype)
        positions = torch.arange(first + num_queries, device=q.device)
        distance = positions[first:, None] - positions[None, :]  # [num_queries, num_keys]
        visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        # [num_queries, heads, dim] -> [kv_heads, group, num_queries, dim]
        query = torch.unflatten(q[rows].to(key.dtype).transpose(0, 1), 0, (len(key), -1))
        scores = score(query @ key.transpose(1, 2).unsqueeze(1), softmax)
        weights = weigh(scores.masked_fill(~visible, -torch.inf), softmax)
        finite = (key.isfinite() & value.isfinite()).all(dim=-1)  # [kv_heads, num_keys]
        spoiled = (visible & ~finite[:, None]).any(dim=-1)  # [kv_heads, num_queries]
        # Without this, a weight of 0 times NaN would be NaN for queries that do not see the key.
        value = value.where(finite.unsqueeze(-1), 0.0)
        attended = weights @ value.unsqueeze(1)
        attended = attended.masked_fill(spoiled[:, None, :, None], torch.nan)
        out[rows] = attended.flatten(0, 1).transpose(0, 1)
    return out
