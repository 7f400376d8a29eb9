"""Triton twins of `pagedrun.kernels.reference`, for NVIDIA and AMD GPUs.

Every launch is safe to capture in a CUDA graph: its grid follows from the shapes of its arguments,
what the tensors hold is read on the device alone, and nothing waits for the device. Launches go to
the current stream of the current device. Which tile sizes a chip gets is in one table at the
top of each file, as a function of shapes, dtypes and chip: nothing is tuned while running.
Each launch says whether products and sums may become one operation, in matrix products alone: what
it would be otherwise depends on the version of Triton.

With TRITON_INTERPRET=1 in the environment before Triton is imported, the same kernels run on CPU
tensors: slowly, but with the same result.
"""

from pagedrun.kernels.gpu.activations import clipped_swiglu, gelu_tanh_mul, sigmoid_mul, silu_mul
from pagedrun.kernels.gpu.attention.decode_attention import decode_attention
from pagedrun.kernels.gpu.attention.prefill_attention import prefill_attention
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_attention
from pagedrun.kernels.gpu.expert_routing import combine_experts, route
from pagedrun.kernels.gpu.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.gpu.kv_cache import copy_blocks, rotary_store, swap_blocks
from pagedrun.kernels.gpu.linear import Int8Linear, PackedLinear
from pagedrun.kernels.gpu.logits import cap_logits, token_logprobs
from pagedrun.kernels.gpu.norms import add_rms_norm, gated_rms_norm, rms_norm
from pagedrun.kernels.gpu.recurrence import causal_conv, gated_delta_rule
from pagedrun.kernels.gpu.sampling import sample
from pagedrun.kernels.reference.logits import mask_logits

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
    "decode_attention",
    "gated_delta_rule",
    "gated_rms_norm",
    "gelu_tanh_mul",
    "mask_logits",
    "prefill_attention",
    "prefix_attention",
    "rms_norm",
    "rotary_store",
    "route",
    "sample",
    "sigmoid_mul",
    "silu_mul",
    "swap_blocks",
    "token_logprobs",
]
