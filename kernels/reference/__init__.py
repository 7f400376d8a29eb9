"""Every op in plain PyTorch: the definition of correct, on any device and in any float dtype.

Written to be read, not to be fast. Arithmetic is float32 for narrower inputs and float64 for
float64 inputs, so the same code is the oracle of the tests.

Layout of the KV memory of one layer: `key_cache, value_cache [num_blocks, num_kv_heads,
block_size, head_dim]`. Slot `block_id * block_size + offset` is one token's place in it. What a
slot holds before its token is written is undefined, and may be NaN.
"""

from pagedrun.kernels.reference.activations.clipped_swiglu import clipped_swiglu
from pagedrun.kernels.reference.activations.gelu_tanh_mul import gelu_tanh_mul
from pagedrun.kernels.reference.activations.sigmoid_mul import sigmoid_mul
from pagedrun.kernels.reference.activations.silu_mul import silu_mul
from pagedrun.kernels.reference.add_rms_norm import add_rms_norm
from pagedrun.kernels.reference.attention.decode_attention import decode_attention
from pagedrun.kernels.reference.attention.prefill_attention import prefill_attention
from pagedrun.kernels.reference.attention.prefix_attention import prefix_attention
from pagedrun.kernels.reference.cache.copy_blocks import copy_blocks
from pagedrun.kernels.reference.cache.rotary_store import rotary_store
from pagedrun.kernels.reference.cache.swap_blocks import swap_blocks
from pagedrun.kernels.reference.cap_logits import cap_logits
from pagedrun.kernels.reference.experts.combine_experts import combine_experts
from pagedrun.kernels.reference.experts.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.reference.experts.route import route
from pagedrun.kernels.reference.linears.int8_linear import Int8Linear
from pagedrun.kernels.reference.linears.linear import PackedLinear
from pagedrun.kernels.reference.linears.quantize_rows import quantize_rows
from pagedrun.kernels.reference.recurrence.causal_conv import causal_conv
from pagedrun.kernels.reference.recurrence.gated_delta_rule import gated_delta_rule
from pagedrun.kernels.reference.recurrence.gated_rms_norm import gated_rms_norm
from pagedrun.kernels.reference.rms_norm import rms_norm
from pagedrun.kernels.reference.sampling.count_tokens import count_tokens
from pagedrun.kernels.reference.sampling.mask_logits import mask_logits
from pagedrun.kernels.reference.sampling.penalize import penalize
from pagedrun.kernels.reference.sampling.sample import sample
from pagedrun.kernels.reference.sampling.token_logprobs import token_logprobs
from pagedrun.kernels.reference.weights.dequantize import dequantize
from pagedrun.kernels.reference.weights.split_blocks import split_blocks
from pagedrun.kernels.reference.weights.unpack_codes import unpack_codes
from pagedrun.kernels.reference.weights.unpack_pairs import unpack_pairs

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
