"""Recurrent layers: causal convolution and the gated delta rule.

The columns of a head's matrix are independent in the delta rule, so a task is some of them: it
processes the tokens of a chunk in order, reads the state once before the first and writes it after
those that have a slot, usually the last. A generated token costs a read and a write of its state.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import EXACT, FAST_SUMS, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.arrays import aligned_zeros
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, NUM_LANES, exp2, fused, load, splat, store
from pagedrun.kernels.op_values import StateInputs
from pagedrun.kernels.reference.recurrence import EPS

_TASK_CHANNELS = 512  # of a task, so that a single prompt occupies all threads


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    inputs: StateInputs,
    activate: bool,
) -> Tensor:
    """Return the weighted sum of each channel's last inputs; see the reference.

    A task is some channels of a chunk, whose tokens it processes in order.
    """
    assert state.is_contiguous(), "written in place"
    out = torch.empty(x.shape, dtype=x.dtype)
    choose_threads(x.numel() * weight.shape[1])
    _causal_conv(
        as_array(x.contiguous()),
        # Transposed: the channels of a tap are contiguous.
        as_array(weight.float().T.contiguous()),
        as_array(x.new_empty(0, dtype=torch.float32) if bias is None else bias.float()),
        as_array(state),
        *(as_array(each) for each in (inputs.tokens, inputs.chunk_starts)),
        *(as_array(each) for each in (inputs.read_slots, inputs.write_slots)),
        activate,
        as_array(out),
    )
    return out


@kernel
def _causal_conv(
    x: Any,
    weight: Any,
    bias: Any,
    state: Any,
    tokens: Any,
    chunk_starts: Any,
    read_slots: Any,
    write_slots: Any,
    activate: Any,
    out: Any,
) -> None:
    num_channels = x.shape[1]
    num_pieces = (num_channels + _TASK_CHANNELS - 1) // _TASK_CHANNELS
    for task in numba.prange(read_slots.shape[0] * num_pieces):
        chunk, piece = task // num_pieces, task % num_pieces
        first = piece * _TASK_CHANNELS
        last = min(first + _TASK_CHANNELS, num_channels)
        read = read_slots[chunk]
        num_before = weight.shape[0] - 1
        # Inputs before the next token. A ring buffer would save copies of a few hundred numbers.
        before = np.zeros((num_before, last - first), np.float32)
        if read >= 0:
            for place in range(num_before):
                _widen(state[read, place, first:last], before[place])
        total = np.empty(last - first, np.float32)
        for number in range(chunk_starts[chunk], chunk_starts[chunk + 1]):
            token, write = tokens[number], write_slots[number]
            newest = x[token, first:last]
            _begin(bias[first:last], total)
            for place in range(num_before):
                _add(weight[place, first:last], before[place], total)
            _add_newest(weight[num_before, first:last], newest, total)
            for place in range(num_before - 1):
                before[place] = before[place + 1]
            if num_before > 0:
                _widen(newest, before[num_before - 1])
            _finish(total, activate, out[token, first:last])
            if write >= 0:
                for place in range(num_before):
                    _narrow(before[place], state[write, place, first:last])


@inlined()
def _widen(source: Any, target: Any) -> None:
    for i in range(target.shape[0]):
        target[i] = to_float32(source[i])


@inlined()
def _narrow(source: Any, target: Any) -> None:
    for i in range(target.shape[0]):
        target[i] = from_float32(source[i], target)


@inlined()
def _begin(bias: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] = np.float32(0.0)
    for i in range(bias.shape[0]):
        total[i] = bias[i]


@inlined()
def _add(weight: Any, before: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += weight[i] * before[i]


@inlined()
def _add_newest(weight: Any, newest: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += weight[i] * to_float32(newest[i])


@inlined()
def _finish(total: Any, activate: Any, out: Any) -> None:
    if activate:
        for i in range(out.shape[0]):
            sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-total[i] * LOG2_E))
            out[i] = from_float32(total[i] * sigmoid, out)
    else:
        for i in range(out.shape[0]):
            out[i] = from_float32(total[i], out)


_COLUMNS = 2 * NUM_LANES  # of one task; with 128 rows they fill half of an L1 cache
_ROWS = 4  # independent sums, to hide the latency of additions
_EPS = np.float32(EPS)
_ZERO, _ONE, _LARGE = np.float32(0.0), np.float32(1.0), np.float32(20.0)


def gated_delta_rule(
    qkv: Tensor,
    gates: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    inputs: StateInputs,
) -> Tensor:
    """Return the read-out of each token's query from the state after it; see the reference."""
    assert state.is_contiguous(), "written in place"
    _, num_heads, key_dim, value_dim = state.shape
    out = torch.empty((len(qkv), num_heads * value_dim), dtype=qkv.dtype)
    choose_threads(len(qkv) * num_heads * key_dim * value_dim)
    _gated_delta_rule(
        as_array(qkv.contiguous()),
        as_array(gates.contiguous()),
        as_array(a_log),
        as_array(dt_bias),
        as_array(state),
        *(as_array(each) for each in (inputs.tokens, inputs.chunk_starts)),
        *(as_array(each) for each in (inputs.read_slots, inputs.write_slots)),
        as_array(out),
    )
    return out


@kernel
def _gated_delta_rule(
    qkv: Any,
    gates: Any,
    a_log: Any,
    dt_bias: Any,
    state: Any,
    tokens: Any,
    chunk_starts: Any,
    read_slots: Any,
    write_slots: Any,
    out: Any,
) -> None:
    num_heads, key_dim, value_dim = state.shape[1], state.shape[2], state.shape[3]
    num_keys = (qkv.shape[1] - num_heads * value_dim) // 2  # numbers of a token's keys
    repeats = num_heads * key_dim // num_keys
    # Decay of the state and write strength, of each token and value head.
    alpha = np.empty((qkv.shape[0], num_heads), np.float32)
    beta = np.empty((qkv.shape[0], num_heads), np.float32)
    # 1 / length of the query and key heads of each token.
    scale = np.empty((qkv.shape[0], 2 * num_keys // key_dim), np.float32)
    for token in numba.prange(qkv.shape[0]):
        for head in range(num_heads):
            step = _softplus(to_float32(gates[token, num_heads + head]) + dt_bias[head])
            alpha[token, head] = np.exp(-np.exp(a_log[head]) * step)
            beta[token, head] = _ONE / (_ONE + np.exp(-to_float32(gates[token, head])))
        for head in range(scale.shape[1]):
            scale[token, head] = _inverse_length(qkv[token, head * key_dim : (head + 1) * key_dim])
        for head in range(num_keys // key_dim):
            scale[token, head] /= np.sqrt(np.float32(key_dim))
    num_rows = (key_dim + _ROWS - 1) // _ROWS * _ROWS
    num_pieces = (value_dim + _COLUMNS - 1) // _COLUMNS
    for task in numba.prange(read_slots.shape[0] * num_heads * num_pieces):
        chunk, piece = task // (num_heads * num_pieces), task % num_pieces
        head = task // num_pieces % num_heads
        first = piece * _COLUMNS
        width = min(_COLUMNS, value_dim - first)
        # Padding beyond the last row or column is zero.
        matrix = aligned_zeros(num_rows * _COLUMNS, np.float32)
        query, key = aligned_zeros(num_rows, np.float32), aligned_zeros(num_rows, np.float32)
        value, result = aligned_zeros(_COLUMNS, np.float32), aligned_zeros(_COLUMNS, np.float32)
        read = read_slots[chunk]
        if read >= 0 and width == _COLUMNS:
            _load_columns(state, ((read * num_heads + head) * key_dim) * value_dim + first, matrix)
        elif read >= 0:
            for row in range(key_dim):
                source = state[read, head, row, first : first + width]
                _copy(source, matrix[row * _COLUMNS : row * _COLUMNS + width])
        key_head = head // repeats
        of_query, of_key = key_head * key_dim, num_keys + key_head * key_dim
        of_value = 2 * num_keys + head * value_dim + first
        of_out = head * value_dim + first
        for number in range(chunk_starts[chunk], chunk_starts[chunk + 1]):
            token, write = tokens[number], write_slots[number]
            numbers = qkv[token]
            _scaled(numbers[of_query : of_query + key_dim], scale[token, key_head], query)
            factor = scale[token, num_keys // key_dim + key_head]
            _scaled(numbers[of_key : of_key + key_dim], factor, key)
            _scaled(numbers[of_value : of_value + width], _ONE, value)
            _step(
                matrix, num_rows, query, key, value, alpha[token, head], beta[token, head], result
            )
            _round(result, out[token, of_out : of_out + width])
            if write >= 0 and width == _COLUMNS:
                _store_columns(
                    matrix, state, ((write * num_heads + head) * key_dim) * value_dim + first
                )
            elif write >= 0:
                for row in range(key_dim):
                    target = state[write, head, row, first : first + width]
                    _copy(matrix[row * _COLUMNS : row * _COLUMNS + width], target)


@inlined(fastmath=EXACT)
def _step(
    matrix: Any,
    num_rows: Any,
    query: Any,
    key: Any,
    value: Any,
    alpha: Any,
    beta: Any,
    result: Any,
) -> None:
    """Update the matrix [num_rows, _COLUMNS] with one token, and read from it."""
    zero = splat(_ZERO)
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    for row in range(0, num_rows, _ROWS):
        at = row * _COLUMNS
        k = splat(key[row])
        a0 = fused(k, load(matrix, at), a0)
        b0 = fused(k, load(matrix, at + NUM_LANES), b0)
        k = splat(key[row + 1])
        a1 = fused(k, load(matrix, at + _COLUMNS), a1)
        b1 = fused(k, load(matrix, at + _COLUMNS + NUM_LANES), b1)
        k = splat(key[row + 2])
        a2 = fused(k, load(matrix, at + 2 * _COLUMNS), a2)
        b2 = fused(k, load(matrix, at + 2 * _COLUMNS + NUM_LANES), b2)
        k = splat(key[row + 3])
        a3 = fused(k, load(matrix, at + 3 * _COLUMNS), a3)
        b3 = fused(k, load(matrix, at + 3 * _COLUMNS + NUM_LANES), b3)
    stays, taken = splat(alpha), splat(beta)
    # The decayed state's value of the key.
    known_a, known_b = stays * ((a0 + a1) + (a2 + a3)), stays * ((b0 + b1) + (b2 + b3))
    new_a = taken * (load(value, 0) - known_a)
    new_b = taken * (load(value, NUM_LANES) - known_b)
    a0, a1, b0, b1 = zero, zero, zero, zero
    for row in range(0, num_rows, 2):
        at = row * _COLUMNS
        k, q = splat(key[row]), splat(query[row])
        a, b = stays * load(matrix, at), stays * load(matrix, at + NUM_LANES)
        a, b = fused(k, new_a, a), fused(k, new_b, b)
        store(matrix, at, a)
        store(matrix, at + NUM_LANES, b)
        a0, b0 = fused(q, a, a0), fused(q, b, b0)
        at += _COLUMNS
        k, q = splat(key[row + 1]), splat(query[row + 1])
        a, b = stays * load(matrix, at), stays * load(matrix, at + NUM_LANES)
        a, b = fused(k, new_a, a), fused(k, new_b, b)
        store(matrix, at, a)
        store(matrix, at + NUM_LANES, b)
        a1, b1 = fused(q, a, a1), fused(q, b, b1)
    store(result, 0, a0 + a1)
    store(result, NUM_LANES, b0 + b1)


@inlined(fastmath=EXACT)
def _load_columns(state: Any, first: Any, matrix: Any) -> None:
    """Load columns of all rows, from flat index `first` on."""
    for row in range(state.shape[2]):
        at = first + row * state.shape[3]
        store(matrix, row * _COLUMNS, load(state, at))
        store(matrix, row * _COLUMNS + NUM_LANES, load(state, at + NUM_LANES))


@inlined(fastmath=EXACT)
def _store_columns(matrix: Any, state: Any, first: Any) -> None:
    """Store columns of all rows, from flat index `first` on."""
    for row in range(state.shape[2]):
        at = first + row * state.shape[3]
        store(state, at, load(matrix, row * _COLUMNS))
        store(state, at + NUM_LANES, load(matrix, row * _COLUMNS + NUM_LANES))


@inlined()
def _softplus(x: Any) -> Any:
    return x if x > _LARGE else np.log1p(np.exp(x))


@inlined(fastmath=FAST_SUMS)
def _inverse_length(head: Any) -> Any:
    total = _ZERO
    for i in range(head.shape[0]):
        number = to_float32(head[i])
        total += number * number
    return _ONE / np.sqrt(total + _EPS)


@inlined()
def _scaled(source: Any, factor: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = to_float32(source[i]) * factor


@inlined()
def _copy(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = source[i]


@inlined()
def _round(source: Any, target: Any) -> None:
    for i in range(target.shape[0]):
        target[i] = from_float32(source[i], target)
