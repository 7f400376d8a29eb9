"""What a layer's queries read of the cache: prompt tokens and generated ones by their own path."""

import torch
from torch import Tensor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.paged.models.forward_batch import ForwardBatch, GroupBatch


def attend(
    q: Tensor,
    batch: ForwardBatch,
    group: GroupBatch,
    layer: KVLayer,
    softmax: Softmax,
    window: int | None,
) -> Tensor:
    """Return the heads' results side by side, [num_tokens, num_heads * head_dim].

    q: [num_tokens, num_heads, head_dim]. `layer` holds the keys and values of the batch already;
    `group` is the one that it belongs to.
    """
    attention = group.attention
    parts: list[Tensor] = []
    if batch.has_prefill:
        prompts = q[: batch.num_prefill_tokens]
        parts.append(attention.prefill(prompts, layer, softmax, window))
    if batch.has_decode:
        generated = q[batch.num_prefill_tokens :]
        # With a sliding window no part is shared, since each row's begins elsewhere.
        prefix = None
        if window is None:
            prefix = attention.prefix(generated, layer, softmax)
        parts.append(attention.decode(generated, layer, softmax, window, prefix))
    return torch.cat(parts).flatten(1) if len(parts) > 1 else parts[0].flatten(1)
