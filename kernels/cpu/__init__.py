"""The ops of `pagedrun.kernels.reference`, fast on a CPU: Numba, and oneDNN through torch.

Same names, same signatures, same meaning; what each op does is said there. float32 and bfloat16.
A row's result is the same bytes whatever other rows are in the call: every kernel gives a row, or
a (row, kv head), to one thread, and sums in an order that the row alone decides.

Call `pagedrun.kernels.environment.threads.prepare_environment()` before torch or numba is imported.
"""

from pagedrun.kernels.cpu.activations.clipped_swiglu import clipped_swiglu
from pagedrun.kernels.cpu.activations.gelu_tanh_mul import gelu_tanh_mul
from pagedrun.kernels.cpu.activations.sigmoid_mul import sigmoid_mul
from pagedrun.kernels.cpu.activations.silu_mul import silu_mul
from pagedrun.kernels.cpu.add_rms_norm import add_rms_norm
from pagedrun.kernels.cpu.attention.decode_attention import decode_attention
from pagedrun.kernels.cpu.attention.prefill_attention import prefill_attention
from pagedrun.kernels.cpu.attention.prefix_attention import prefix_attention
from pagedrun.kernels.cpu.cache.copy_blocks import copy_blocks
from pagedrun.kernels.cpu.cache.rotary_store import rotary_store
from pagedrun.kernels.cpu.cache.swap_blocks import swap_blocks
from pagedrun.kernels.cpu.cap_logits import cap_logits
from pagedrun.kernels.cpu.experts.combine_experts import combine_experts
from pagedrun.kernels.cpu.experts.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.cpu.experts.route import route
from pagedrun.kernels.cpu.linears.int8_linear import Int8Linear
from pagedrun.kernels.cpu.linears.linear import PackedLinear
from pagedrun.kernels.cpu.linears.quantize_rows import quantize_rows
from pagedrun.kernels.cpu.recurrence.causal_conv import causal_conv
from pagedrun.kernels.cpu.recurrence.gated_delta_rule import gated_delta_rule
from pagedrun.kernels.cpu.recurrence.gated_rms_norm import gated_rms_norm
from pagedrun.kernels.cpu.rms_norm import rms_norm
from pagedrun.kernels.cpu.sampling.count_tokens import count_tokens
from pagedrun.kernels.cpu.sampling.mask_logits import mask_logits
from pagedrun.kernels.cpu.sampling.penalize import penalize
from pagedrun.kernels.cpu.sampling.sample import sample
from pagedrun.kernels.cpu.sampling.token_logprobs import token_logprobs
from pagedrun.kernels.cpu.weights.dequantize import dequantize
from pagedrun.kernels.cpu.weights.split_blocks import split_blocks
from pagedrun.kernels.cpu.weights.unpack_codes import unpack_codes
from pagedrun.kernels.cpu.weights.unpack_pairs import unpack_pairs

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
