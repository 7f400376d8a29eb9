"""A depthwise convolution over the tokens of each sequence.

Two launches: every token by itself first, which reads the states as they were, then the states.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.state_inputs import StateInputs

_TILE = 512  # channels of one program: a load of 8 bytes a thread for each tap
_NUM_WARPS = 4


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    inputs: StateInputs,
    activate: bool,
) -> Tensor:
    """Return the sum of each channel's last inputs, weighted; see the reference."""
    assert x.stride(1) == 1, "rows are read in one piece"
    assert state.is_contiguous(), "written in place"
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_channels, size = weight.shape
    if not len(inputs.tokens):
        return out
    tiles = triton.cdiv(num_channels, _TILE)
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
        TILE=_TILE,
        num_warps=_NUM_WARPS,
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
        TILE=_TILE,
        num_warps=_NUM_WARPS,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _input(x, state, tokens, start, place, read, columns, x_stride, num_channels, BEFORE):
    """Return a token's inputs, by its place in a chunk; before that they come from the state."""
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
    """One program: some channels of one token."""
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
    """One program: some channels of one chunk's state, which may be written where it is read."""
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    write = tl.load(write_slots + chunk)
    if write >= 0:
        start, end = tl.load(chunk_starts + chunk), tl.load(chunk_starts + chunk + 1)
        read = tl.load(read_slots + chunk)
        # A row's place is before the one that it is read from: upwards, none is lost.
        for row in tl.static_range(BEFORE):
            place = end - start - BEFORE + row
            values = _input(
                x, state, tokens, start, place, read, columns, x_stride, num_channels, BEFORE
            )
            target = write.to(tl.int64) * BEFORE + row
            tl.store(state + target * num_channels + columns, values, mask=columns < num_channels)
