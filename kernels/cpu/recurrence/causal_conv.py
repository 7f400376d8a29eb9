"""A depthwise convolution over the tokens of each sequence."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread
from pagedrun.kernels.state_inputs import StateInputs

_TASK_CHANNELS = 512  # of one chunk, at most: a prompt alone keeps all threads busy


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    inputs: StateInputs,
    activate: bool,
) -> Tensor:
    """Return the sum of each channel's last inputs, weighted; see the reference.

    Some channels of a chunk are one thread's, which takes its tokens in their order.
    """
    assert state.is_contiguous(), "written in place"
    out = torch.empty(x.shape, dtype=x.dtype)
    spread(x.numel() * weight.shape[1])
    _causal_conv(
        as_array(x.contiguous()),
        # One tap after the other, so that the channels of each lie side by side.
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
        own = tokens[chunk_starts[chunk] : chunk_starts[chunk + 1]]
        read, write = read_slots[chunk], write_slots[chunk]
        num_before = weight.shape[0] - 1
        # The inputs before the next token: a ring would save copies of a few hundred numbers.
        before = np.zeros((num_before, last - first), np.float32)
        if read >= 0:
            for place in range(num_before):
                _widen(state[read, place, first:last], before[place])
        total = np.empty(last - first, np.float32)
        for token in own:
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


@part()
def _widen(source: Any, target: Any) -> None:
    for i in range(target.shape[0]):
        target[i] = to_float32(source[i])


@part()
def _narrow(source: Any, target: Any) -> None:
    for i in range(target.shape[0]):
        target[i] = from_float32(source[i], target)


@part()
def _begin(bias: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] = np.float32(0.0)
    for i in range(bias.shape[0]):
        total[i] = bias[i]


@part()
def _add(weight: Any, before: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += weight[i] * before[i]


@part()
def _add_newest(weight: Any, newest: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += weight[i] * to_float32(newest[i])


@part()
def _finish(total: Any, activate: Any, out: Any) -> None:
    if activate:
        for i in range(out.shape[0]):
            sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-total[i] * LOG2_E))
            out[i] = from_float32(total[i] * sigmoid, out)
    else:
        for i in range(out.shape[0]):
            out[i] = from_float32(total[i], out)
