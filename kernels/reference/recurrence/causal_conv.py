"""A depthwise convolution over the tokens of each sequence."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from pagedrun.kernels.state_inputs import StateInputs


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
    for chunk, tokens in enumerate(inputs.chunks()):
        read, write = int(inputs.read_slots[chunk]), int(inputs.write_slots[chunk])
        before = torch.zeros_like(state[0]) if read < 0 else state[read]
        seen = torch.cat([before, x[tokens]])
        total = torch.zeros(len(tokens), x.shape[1], dtype=wide, device=x.device)
        if bias is not None:
            total += bias.to(wide)
        for place in range(weight.shape[1]):
            total += weight[:, place].to(wide) * seen[place : place + len(tokens)].to(wide)
        out[tokens] = (silu(total) if activate else total).to(x.dtype)
        if write >= 0:
            state[write] = seen[len(tokens) :]
    return out
