"""Every op in plain PyTorch: the definition of correct, on any device and in any float dtype.

Written to be read, not to be fast. Arithmetic is float32 for narrower inputs and float64 for
float64 inputs, so the same code is the oracle of the tests.

Layout of the KV memory of one layer: `key_cache, value_cache [num_blocks, num_kv_heads,
block_size, head_dim]`. Slot `block_id * block_size + offset` is one token's place in it. What a
slot holds before its token is written is undefined, and may be NaN.
"""

from pagedrun.kernels.reference.activations import (
    clipped_swiglu,
    gelu_tanh_mul,
    sigmoid_mul,
    silu_mul,
)
from pagedrun.kernels.reference.attention import (
    decode_attention,
    prefill_attention,
    prefix_attention,
)
from pagedrun.kernels.reference.experts import PackedGroupedLinear, combine_experts, route
from pagedrun.kernels.reference.kv_cache import copy_blocks, rotary_store, swap_blocks
from pagedrun.kernels.reference.linear import Int8Linear, PackedLinear, quantize_rows
from pagedrun.kernels.reference.logits import (
    cap_logits,
    count_tokens,
    mask_logits,
    penalize,
    token_logprobs,
)
from pagedrun.kernels.reference.norms import add_rms_norm, gated_rms_norm, rms_norm
from pagedrun.kernels.reference.recurrence import causal_conv, gated_delta_rule
from pagedrun.kernels.reference.sampling import sample
from pagedrun.kernels.reference.weights import dequantize, split_blocks, unpack_codes, unpack_pairs

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
