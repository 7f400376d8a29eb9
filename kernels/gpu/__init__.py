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

from pagedrun.kernels.gpu.add_rms_norm import add_rms_norm
from pagedrun.kernels.gpu.attention.decode_attention import decode_attention
from pagedrun.kernels.gpu.attention.prefill_attention import prefill_attention
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_attention
from pagedrun.kernels.gpu.cap_logits import cap_logits
from pagedrun.kernels.gpu.clipped_swiglu import clipped_swiglu
from pagedrun.kernels.gpu.copy_blocks import copy_blocks
from pagedrun.kernels.gpu.experts.combine_experts import combine_experts
from pagedrun.kernels.gpu.experts.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.gpu.experts.route import route
from pagedrun.kernels.gpu.gelu_tanh_mul import gelu_tanh_mul
from pagedrun.kernels.gpu.int8_linear import Int8Linear
from pagedrun.kernels.gpu.linear import PackedLinear
from pagedrun.kernels.gpu.recurrence.causal_conv import causal_conv
from pagedrun.kernels.gpu.recurrence.gated_delta_rule import gated_delta_rule
from pagedrun.kernels.gpu.recurrence.gated_rms_norm import gated_rms_norm
from pagedrun.kernels.gpu.rms_norm import rms_norm
from pagedrun.kernels.gpu.rotary_store import rotary_store
from pagedrun.kernels.gpu.sampling.sample import sample
from pagedrun.kernels.gpu.sampling.token_logprobs import token_logprobs
from pagedrun.kernels.gpu.sigmoid_mul import sigmoid_mul
from pagedrun.kernels.gpu.silu_mul import silu_mul
from pagedrun.kernels.gpu.swap_blocks import swap_blocks
from pagedrun.kernels.reference.sampling.mask_logits import mask_logits

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
