"""Attention over keys and values that lie densely, by torch: what paging is held against."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right


def dense_decode(q: Tensor, keys: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """Return a call that attends from each row of `q` over all of its own keys.

    q: [num_rows, num_heads, head_dim]. keys, values: [num_rows, num_kv_heads, num_tokens,
    head_dim]. The call returns the shape of `q`.
    """

    def call() -> Tensor:
        with _flash(q):
            attended = functional.scaled_dot_product_attention(
                q.unsqueeze(2), keys, values, enable_gqa=True
            )
        return attended.squeeze(2)

    return call


def dense_prefill(q: Tensor, keys: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """Return a call that attends causally from the last tokens of one row over all before them.

    q: [num_tokens, num_heads, head_dim], the last of the row. keys, values: [1, num_kv_heads,
    num_context_tokens, head_dim]. The call returns the shape of `q`.
    """
    num_tokens, context = len(q), keys.shape[2]
    query = q.transpose(0, 1).unsqueeze(0)
    mask: Tensor | None = None
    if num_tokens < context:  # counted from the last key, not from the first
        mask = causal_lower_right(num_tokens, context)  # a Tensor, whatever its type says
        if q.device.type == "cpu":  # which makes the mask anew in every call
            mask = torch.ones(num_tokens, context, dtype=torch.bool).tril(context - num_tokens)

    def call() -> Tensor:
        with _flash(q):
            attended = functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
        return attended[0].transpose(0, 1)

    return call


@contextmanager
def _flash(q: Tensor) -> Iterator[None]:
    """Insist on the flash kernel where a GPU has it: another would be a weaker opponent."""
    if q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            yield
    else:
        yield
