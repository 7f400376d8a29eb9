"""Recurrent layers: depthwise causal convolution and the gated delta rule.

The convolution has two launches: first every token by itself, reading the old states, then the
states. The columns of a head's matrix in the delta rule are independent: one program has some of
them in registers and processes the tokens of a chunk in order, so that splitting a chunk changes no
bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.op_values import StateInputs
from pagedrun.kernels.reference.recurrence import EPS

_CONV_TILE = 512  # channels of one program: a load of 8 bytes a thread for each tap
_CONV_WARPS = 4


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    inputs: StateInputs,
    activate: bool,
) -> Tensor:
    """Return the weighted sum of each channel's last inputs; see the reference."""
    assert x.stride(1) == 1, "rows are read in one piece"
    assert state.is_contiguous(), "written in place"
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_channels, size = weight.shape
    if not len(inputs.tokens):
        return out
    tiles = triton.cdiv(num_channels, _CONV_TILE)
    chunks = inputs.tokens, inputs.chunk_starts, inputs.read_slots
    _causal_conv[(len(inputs.tokens), tiles)](
        x,
        weight.contiguous(),
        bias,
        state,
        *chunks,
        out,
        len(inputs.read_slots),
        x.stride(0),
        num_channels,
        SIZE=size,
        ACTIVATE=activate,
        TILE=_CONV_TILE,
        num_warps=_CONV_WARPS,
        enable_fp_fusion=False,
    )
    _keep_last[(len(inputs.read_slots), tiles)](
        x,
        state,
        *chunks,
        inputs.write_slots,
        x.stride(0),
        num_channels,
        BEFORE=size - 1,
        TILE=_CONV_TILE,
        num_warps=_CONV_WARPS,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _input(x, state, tokens, start, place, read, columns, x_stride, num_channels, BEFORE):
    """Return the inputs of a token of a chunk; inputs before the chunk are read from the state."""
    inside = columns < num_channels
    if place >= 0:
        token = tl.load(tokens + start + place).to(tl.int64)
        values = tl.load(x + token * x_stride + columns, mask=inside, other=0.0)
    else:
        values = tl.zeros((columns.shape[0],), x.dtype.element_ty)
        if read >= 0:
            row = read.to(tl.int64) * BEFORE + BEFORE + place
            values = tl.load(state + row * num_channels + columns, mask=inside, other=0.0)
    return values


@triton.jit(do_not_specialize=["num_chunks"])
def _causal_conv(
    x,
    weight,
    bias,
    state,
    tokens,
    chunk_starts,
    read_slots,
    out,
    num_chunks,
    x_stride,
    num_channels,
    SIZE: tl.constexpr,
    ACTIVATE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute some channels of one token."""
    number = tl.program_id(0)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < num_channels
    # The last chunk that begins at this token or before it.
    chunk, behind = 0, num_chunks
    while behind - chunk > 1:
        middle = (chunk + behind) // 2
        begins = tl.load(chunk_starts + middle) <= number
        chunk = tl.where(begins, middle, chunk)
        behind = tl.where(begins, behind, middle)
    start, read = tl.load(chunk_starts + chunk), tl.load(read_slots + chunk)
    total = tl.zeros((TILE,), tl.float32)
    if bias is not None:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(SIZE):
        place = number - start - (SIZE - 1) + tap
        seen = _input(
            x, state, tokens, start, place, read, columns, x_stride, num_channels, SIZE - 1
        )
        factor = tl.load(weight + columns * SIZE + tap, mask=inside, other=0.0).to(tl.float32)
        total += factor * seen.to(tl.float32)
    if ACTIVATE:
        total = total / (1.0 + tl.exp(-total))
    token = tl.load(tokens + number).to(tl.int64)
    tl.store(out + token * num_channels + columns, total, mask=inside)


@triton.jit
def _keep_last(
    x,
    state,
    tokens,
    chunk_starts,
    read_slots,
    write_slots,
    x_stride,
    num_channels,
    BEFORE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write some channels of the states of one chunk, possibly in place."""
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    start, number = tl.load(chunk_starts + chunk), tl.load(chunk_starts + chunk + 1) - 1
    read = tl.load(read_slots + chunk)
    write = tl.load(write_slots + number, mask=number >= start, other=-1)
    # Only the first of the written slots may be the one that is read: it is written last. There a
    # row's place is before the one that it is read from: upwards, none is lost.
    while write >= 0:
        for row in tl.static_range(BEFORE):
            place = number - start + 1 - BEFORE + row
            values = _input(
                x, state, tokens, start, place, read, columns, x_stride, num_channels, BEFORE
            )
            target = write.to(tl.int64) * BEFORE + row
            tl.store(state + target * num_channels + columns, values, mask=columns < num_channels)
        number -= 1
        write = tl.load(write_slots + number, mask=number >= start, other=-1)


# One warp, so that no sum over a head's rows waits for another: 64 registers a thread hold the
# matrix, and a head of 128 columns is 8 programs.
_DELTA_TILE_ELEMENTS = 2048
_DELTA_WARPS = 1


def gated_delta_rule(
    qkv: Tensor,
    gates: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    inputs: StateInputs,
) -> Tensor:
    """Return the read-out of each token's query from the state after it; see the reference."""
    assert qkv.stride(1) == gates.stride(1) == 1, "rows are read in one piece"
    assert state.is_contiguous(), "written in place"
    _, num_heads, key_dim, value_dim = state.shape
    num_key_heads = (qkv.shape[1] - num_heads * value_dim) // (2 * key_dim)
    out = torch.empty(len(qkv), num_heads * value_dim, dtype=qkv.dtype, device=qkv.device)
    num_chunks = len(inputs.read_slots)
    rows = triton.next_power_of_2(key_dim)
    columns = min(max(1, _DELTA_TILE_ELEMENTS // rows), triton.next_power_of_2(value_dim))
    if num_chunks:
        _gated_delta_rule[(num_chunks, num_heads, triton.cdiv(value_dim, columns))](
            qkv,
            gates,
            a_log,
            dt_bias,
            state,
            inputs.tokens,
            inputs.chunk_starts,
            inputs.read_slots,
            inputs.write_slots,
            out,
            qkv.stride(0),
            gates.stride(0),
            EPS,
            key_dim**-0.5,
            NUM_HEADS=num_heads,
            NUM_KEY_HEADS=num_key_heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=_DELTA_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _gated_delta_rule(
    qkv,
    gates,
    a_log,
    dt_bias,
    state,
    tokens,
    chunk_starts,
    read_slots,
    write_slots,
    out,
    qkv_stride,
    gates_stride,
    eps,
    query_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute some columns of one head's matrix, through one chunk."""
    chunk, head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, columns = tl.arange(0, ROWS), piece * COLUMNS + tl.arange(0, COLUMNS)
    of_key, of_value = rows < KEY_DIM, columns < VALUE_DIM
    inside = of_key[:, None] & of_value[None, :]
    places = (head * KEY_DIM + rows[:, None]) * VALUE_DIM + columns[None, :]
    slot_size: tl.constexpr = NUM_HEADS * KEY_DIM * VALUE_DIM
    read = tl.load(read_slots + chunk)
    now = tl.zeros((ROWS, COLUMNS), tl.float32)
    if read >= 0:
        now = tl.load(state + read.to(tl.int64) * slot_size + places, mask=inside, other=0.0)
    key_head = head // (NUM_HEADS // NUM_KEY_HEADS)
    decay = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    start, end = tl.load(chunk_starts + chunk), tl.load(chunk_starts + chunk + 1)
    for number in range(start, end):
        token = tl.load(tokens + number).to(tl.int64)
        query = qkv + token * qkv_stride + key_head * KEY_DIM + rows
        q = tl.load(query, mask=of_key, other=0.0).to(tl.float32)
        k = tl.load(query + NUM_KEY_HEADS * KEY_DIM, mask=of_key, other=0.0).to(tl.float32)
        value = qkv + token * qkv_stride + 2 * NUM_KEY_HEADS * KEY_DIM + head * VALUE_DIM + columns
        v = tl.load(value, mask=of_value, other=0.0).to(tl.float32)
        gate = gates + token * gates_stride + head
        b, a = tl.load(gate).to(tl.float32), tl.load(gate + NUM_HEADS).to(tl.float32) + bias
        beta = 1.0 / (1.0 + tl.exp(-b))
        softplus = tl.where(a > 20.0, a, _log_of_one_more(tl.exp(a)))
        alpha = tl.exp(-decay * softplus)
        q *= tl.rsqrt(tl.sum(q * q, axis=0) + eps) * query_scale
        k *= tl.rsqrt(tl.sum(k * k, axis=0) + eps)
        now *= alpha
        new = beta * (v - tl.sum(now * k[:, None], axis=0))
        now += k[:, None] * new[None, :]
        result = tl.sum(now * q[:, None], axis=0)
        tl.store(
            out + token * (NUM_HEADS * VALUE_DIM) + head * VALUE_DIM + columns,
            result.to(out.dtype.element_ty),
            mask=of_value,
        )
        write = tl.load(write_slots + number)
        if write >= 0:
            tl.store(state + write.to(tl.int64) * slot_size + places, now, mask=inside)


@triton.jit
def _log_of_one_more(x):
    """Return log(1 + x) to full precision: the rounding error of the sum cancels."""
    sum_ = 1.0 + x
    return tl.where(sum_ == 1.0, x, tl.log(sum_) * (x / (sum_ - 1.0)))
