"""The ops of `pagedrun.kernels.reference`, fast on a CPU: Numba, and oneDNN through torch.

Same names, same signatures, same meaning; what each op does is said there. float32 and bfloat16.
A row's result is the same bytes whatever other rows are in the call: every kernel gives a row, or
a (row, kv head), to one thread, and sums in an order that the row alone decides.

Call `pagedrun.kernels.environment.threads.prepare_environment()` before torch or numba is imported.
"""

from pagedrun.kernels.cpu.activations import clipped_swiglu, gelu_tanh_mul, sigmoid_mul, silu_mul
from pagedrun.kernels.cpu.attention.decode_attention import decode_attention
from pagedrun.kernels.cpu.attention.group_attention import prefill_attention, prefix_attention
from pagedrun.kernels.cpu.expert_routing import combine_experts, route
from pagedrun.kernels.cpu.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.cpu.kv_cache import copy_blocks, rotary_store, swap_blocks
from pagedrun.kernels.cpu.linears.int8_linear import Int8Linear, quantize_rows
from pagedrun.kernels.cpu.linears.linear import PackedLinear
from pagedrun.kernels.cpu.logits import (
    cap_logits,
    count_tokens,
    mask_logits,
    penalize,
    token_logprobs,
)
from pagedrun.kernels.cpu.norms import add_rms_norm, gated_rms_norm, rms_norm
from pagedrun.kernels.cpu.recurrence import causal_conv, gated_delta_rule
from pagedrun.kernels.cpu.sampling import sample
from pagedrun.kernels.cpu.weights import dequantize, split_blocks, unpack_codes, unpack_pairs

__all__ = [
    "Int8Linear",
    "PackedGroupedLinear",
    "PackedLinear",
    "add_rms_norm",
    "cap_logits",
    "causal_conv",
    "clipped_swiglu",
    "combine_experts",
    "copy_blocks",
    "count_tokens",
    "decode_attention",
    "dequantize",
    "gated_delta_rule",
    "gated_rms_norm",
    "gelu_tanh_mul",
    "mask_logits",
    "penalize",
    "prefill_attention",
    "prefix_attention",
    "quantize_rows",
    "rms_norm",
    "rotary_store",
    "route",
    "sample",
    "sigmoid_mul",
    "silu_mul",
    "split_blocks",
    "swap_blocks",
    "token_logprobs",
    "unpack_codes",
    "unpack_pairs",
]
