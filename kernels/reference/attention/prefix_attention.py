"""Attention of query rows over the partitions that they share: the first part of decoding."""

import math

import torch
from torch import Tensor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.attention.prefix_groups import PrefixGroups, PrefixState
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.reference.attention.decode_attention import gather_context, score


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
    peaks = torch.full((num_rows, num_heads), -torch.inf, dtype=dtype)
    masses = torch.zeros(num_rows, num_heads, dtype=dtype)
    totals = torch.zeros(num_rows, num_heads, head_dim, dtype=dtype)
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
            peak = torch.maximum(peaks[row], scores.amax(dim=-1))
            weights = torch.exp2(scores - peak[:, None])
            old = torch.exp2(peaks[row] - peak)
            grouped = weights.view(len(key), -1, scores.shape[-1])
            totals[row] = totals[row] * old[:, None] + (grouped @ value).flatten(0, 1)
            masses[row] = masses[row] * old + weights.sum(dim=-1)
            peaks[row] = peak
    return PrefixState(peaks, masses, totals, groups.num_partitions)
