"""Attention over the KV cache: single queries, prompt chunks, and shared partitions."""

import math

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import (
    DecodeInputs,
    KVLayer,
    PrefillInputs,
    PrefixGroups,
    PrefixState,
    RelativeTerms,
    Softmax,
)
from pagedrun.kernels.partition import PARTITION_TOKENS


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
    max_score = torch.maximum(prefix.max_scores[row], powers.amax(dim=-1))
    weights = torch.exp2(powers - max_score[:, None])
    old = torch.exp2(prefix.max_scores[row] - max_score)
    own = (weights.view(scores.shape) @ value).flatten(0, 1)
    acc = prefix.accs[row] * old[:, None] + own
    sum_exp = prefix.sum_exps[row] * old + weights.sum(dim=-1)
    if softmax.sinks is not None:
        sum_exp = sum_exp + torch.exp2(softmax.sinks * math.log2(math.e) - max_score)
    return acc / sum_exp[:, None]


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


def prefill_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    chunks: PrefillInputs,
    softmax: Softmax,
    window: int | None,
) -> Tensor:
    """Return attention for chunks of consecutive queries, each over its own context.

    q: [num_tokens, num_heads, head_dim], the chunks one after another: chunk c is rows
    chunks.chunk_starts[c] .. chunks.chunk_starts[c + 1] - 1. The chunks' own keys and values are in
    the layer. block_tables: [num_tables, max_blocks] int32.

    The query at position p sees positions 0 .. p, or only the last `window` of them; without
    `is_causal` all positions of its chunk, or those less than `window` away. Products may have
    `RelativeTerms`. Slots beyond
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
        visible = (distance >= 0) if chunks.is_causal else torch.ones_like(distance).bool()
        if window is not None:
            visible &= distance.abs() < window
        # [num_queries, heads, dim] -> [kv_heads, group, num_queries, dim]
        query = torch.unflatten(q[rows].to(key.dtype).transpose(0, 1), 0, (len(key), -1))
        products = query @ key.transpose(1, 2).unsqueeze(1)
        if softmax.relative is not None:
            terms = relative_terms(softmax.relative, rows)
            products = products + terms.to(products.dtype).view_as(products)
        scores = score(products, softmax)
        weights = weigh(scores.masked_fill(~visible, -torch.inf), softmax)
        finite = (key.isfinite() & value.isfinite()).all(dim=-1)  # [kv_heads, num_keys]
        spoiled = (visible & ~finite[:, None]).any(dim=-1)  # [kv_heads, num_queries]
        # Without this, a weight of 0 times NaN would be NaN for queries that do not see the key.
        value = value.where(finite.unsqueeze(-1), 0.0)
        attended = weights @ value.unsqueeze(1)
        attended = attended.masked_fill(spoiled[:, None, :, None], torch.nan)
        out[rows] = attended.flatten(0, 1).transpose(0, 1)
    return out


def relative_terms(relative: RelativeTerms, rows: slice) -> Tensor:
    """Return the addends of the products of a chunk, [num_heads, num_queries, num_keys].

    rows: the tokens of the chunk. float32, or float64 for tables of it.
    """
    positions = torch.arange(rows.stop - rows.start, device=relative.columns.device)
    distances = positions[:, None] - positions[None, :]
    columns = relative.columns[len(relative.columns) // 2 + distances].long()
    terms: list[Tensor] = []
    for table, chosen in ((relative.by_query, columns), (relative.by_key, columns.T)):
        if table is not None:
            wide = table[rows].transpose(0, 1).to(torch.promote_types(table.dtype, torch.float32))
            terms.append(wide.gather(2, chosen.expand(len(wide), -1, -1)))
    if relative.by_key is not None:
        terms[-1] = terms[-1].transpose(1, 2)
    return sum(terms[1:], terms[0])


def prefix_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    groups: PrefixGroups,
    softmax: Softmax,
) -> PrefixState:
    """Attend from each row over the partitions of its groups; `decode_attention` takes it up.

    q: [num_rows, num_heads, head_dim]. block_tables: [num_tables, max_blocks] int32. The partitions
    of a group are full and visible to all of its rows: there is no mask and no sliding window.
    Returns the state of each row, see `PrefixState`; float64 for float64 inputs.
    """
    num_rows, num_heads, head_dim = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    max_scores = torch.full((num_rows, num_heads), -torch.inf, dtype=dtype)
    sum_exps = torch.zeros(num_rows, num_heads, dtype=dtype)
    accs = torch.zeros(num_rows, num_heads, head_dim, dtype=dtype)
    starts = groups.row_starts.tolist()
    for group, table in enumerate(groups.table_rows.tolist()):
        first = int(groups.first_partitions[group]) * PARTITION_TOKENS
        last = int(groups.last_partitions[group]) * PARTITION_TOKENS
        context = gather_context(layer, block_tables[table], last, q.dtype)
        key, value = (each[:, first:] for each in context)
        for row in groups.rows[starts[group] : starts[group + 1]].tolist():
            query = q[row].to(key.dtype).view(len(key), -1, head_dim)
            scores = score(query @ key.transpose(1, 2), softmax) * math.log2(math.e)
            scores = scores.flatten(0, 1)
            max_score = torch.maximum(max_scores[row], scores.amax(dim=-1))
            weights = torch.exp2(scores - max_score[:, None])
            old = torch.exp2(max_scores[row] - max_score)
            grouped = weights.view(len(key), -1, scores.shape[-1])
            accs[row] = accs[row] * old[:, None] + (grouped @ value).flatten(0, 1)
            sum_exps[row] = sum_exps[row] * old + weights.sum(dim=-1)
            max_scores[row] = max_score
    return PrefixState(max_scores, sum_exps, accs, groups.num_partitions)
