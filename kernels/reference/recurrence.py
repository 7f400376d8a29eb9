"""Recurrent layers: depthwise causal convolution and the gated delta rule."""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from pagedrun.kernels.op_values import StateInputs


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    inputs: StateInputs,
    activate: bool,
) -> Tensor:
    """Return the sum of each channel's last inputs, weighted, float32 inside, rounded once.

    x: [num_tokens, num_channels]. weight: [num_channels, size], the newest token's weight last.
    bias: [num_channels]. state: [num_slots, size - 1, num_channels] in the dtype of x, the inputs
    before the next token, oldest first; its write slots are written. `activate`: the result passes
    silu. Returns the shape and dtype of x; rows that are in no chunk are undefined.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.empty_like(x)
    for chunk, (tokens, writes) in enumerate(zip(inputs.chunks(), inputs.writes(), strict=True)):
        read = int(inputs.read_slots[chunk])
        before = torch.zeros_like(state[0]) if read < 0 else state[read]
        seen = torch.cat([before, x[tokens]])
        total = torch.zeros(len(tokens), x.shape[1], dtype=wide, device=x.device)
        if bias is not None:
            total += bias.to(wide)
        for place in range(weight.shape[1]):
            total += weight[:, place].to(wide) * seen[place : place + len(tokens)].to(wide)
        out[tokens] = (silu(total) if activate else total).to(x.dtype)
        for place in torch.nonzero(writes >= 0).flatten().tolist():
            state[writes[place]] = seen[place + 1 : place + weight.shape[1]]
    return out


EPS = 1e-6  # added to the squared lengths of queries and keys


def gated_delta_rule(
    qkv: Tensor,
    gates: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    inputs: StateInputs,
) -> Tensor:
    """Return what each token's query reads from the state behind it, token by token, in float32.

    With queries and keys of length 1 (queries divided by √key_dim as well), beta = sigmoid(b) and
    alpha = exp(-exp(a_log) * softplus(a + dt_bias)):

        S ← alpha * S;  S ← S + k ⊗ beta * (v - Sᵀk);  o = Sᵀq

    qkv: [num_tokens, 2 * num_key_heads * key_dim + num_value_heads * value_dim], queries, keys,
    values. gates: [num_tokens, 2 * num_value_heads], b then a. a_log, dt_bias: [num_value_heads]
    float32. state: [num_slots, num_value_heads, key_dim, value_dim] float32, whose write slots are
    written. Key head i belongs to as many value heads in a row as there are for each. Returns
    [num_tokens, num_value_heads * value_dim] in the dtype of qkv; rows in no chunk are undefined.
    """
    _, num_heads, key_dim, value_dim = state.shape
    num_values = num_heads * value_dim
    wide = torch.promote_types(qkv.dtype, torch.float32)
    queries_keys, values = torch.split(qkv.to(wide), [qkv.shape[1] - num_values, num_values], dim=1)
    queries, keys = torch.unflatten(queries_keys, 1, (2, -1, key_dim)).unbind(1)
    repeats = num_heads // queries.shape[1]
    queries = _unit(queries).repeat_interleave(repeats, dim=1) * key_dim**-0.5
    keys = _unit(keys).repeat_interleave(repeats, dim=1)
    values = torch.unflatten(values, 1, (num_heads, value_dim))
    b, a = gates.to(wide).chunk(2, dim=1)
    beta = b.sigmoid()
    alpha = (-a_log.to(wide).exp() * softplus(a + dt_bias.to(wide))).exp()
    out = torch.empty_like(values)
    for chunk, (tokens, writes) in enumerate(zip(inputs.chunks(), inputs.writes(), strict=True)):
        read = int(inputs.read_slots[chunk])
        # Without a copy the rounds below would change what another chunk reads.
        now = torch.zeros_like(state[0]) if read < 0 else state[read].clone()
        now = now.to(wide)
        for token, write in zip(tokens.tolist(), writes.tolist(), strict=True):
            now = now * alpha[token, :, None, None]
            k, q = keys[token, :, :, None], queries[token, :, :, None]
            missing = values[token] - (now * k).sum(1)
            now = now + k * (beta[token, :, None] * missing)[:, None]
            out[token] = (now * q).sum(1)
            if write >= 0:
                state[write] = now.to(state.dtype)
    return out.flatten(1).to(qkv.dtype)


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + EPS)
