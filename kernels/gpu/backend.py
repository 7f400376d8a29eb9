"""The backend of NVIDIA and AMD GPUs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedrun.kernels import gpu, reference
from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.gpu.attention.prefix_attention import GpuAttention
from pagedrun.kernels.gpu.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.gpu.linear import Int8Linear, PackedLinear
from pagedrun.kernels.gpu.quantized.linear import QuantizedGroupedLinear, QuantizedLinear
from pagedrun.kernels.ops import GroupedLinear, Linear
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight


class GpuBackend:
    """Implements `Backend` and `AttentionOps` by Triton kernels and the vendor's products.

    Penalties, which few rows ask for, are plain PyTorch.
    """

    name = "pagedrun.kernels.gpu"
    code_kernels = CodeKernels.GPU

    route = staticmethod(gpu.route)
    combine_experts = staticmethod(gpu.combine_experts)
    causal_conv = staticmethod(gpu.causal_conv)
    gated_delta_rule = staticmethod(gpu.gated_delta_rule)
    gated_rms_norm = staticmethod(gpu.gated_rms_norm)
    rms_norm = staticmethod(gpu.rms_norm)
    add_rms_norm = staticmethod(gpu.add_rms_norm)
    silu_mul = staticmethod(gpu.silu_mul)
    gelu_tanh_mul = staticmethod(gpu.gelu_tanh_mul)
    clipped_swiglu = staticmethod(gpu.clipped_swiglu)
    sigmoid_mul = staticmethod(gpu.sigmoid_mul)
    cap_logits = staticmethod(gpu.cap_logits)
    rotary_store = staticmethod(gpu.rotary_store)
    prefill_attention = staticmethod(gpu.prefill_attention)
    prefix_attention = staticmethod(gpu.prefix_attention)
    decode_attention = staticmethod(gpu.decode_attention)
    mask_logits = staticmethod(gpu.mask_logits)
    sample = staticmethod(gpu.sample)
    count_tokens = staticmethod(reference.count_tokens)
    penalize = staticmethod(reference.penalize)
    quantize_rows = staticmethod(reference.quantize_rows)
    split_blocks = staticmethod(reference.split_blocks)
    unpack_codes = staticmethod(reference.unpack_codes)
    unpack_pairs = staticmethod(reference.unpack_pairs)
    dequantize = staticmethod(reference.dequantize)
    token_logprobs = staticmethod(gpu.token_logprobs)
    copy_blocks = staticmethod(gpu.copy_blocks)
    swap_blocks = staticmethod(gpu.swap_blocks)

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> GpuAttention:
        """Return the attention of a step, its groups turned into work items."""
        return GpuAttention.of(inputs, self, shape, room)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        """Return a linear layer: the vendor's product, or our own where rows are invariant."""
        return PackedLinear(weight, bias, row_invariant)

    def pack_int8(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Int8Linear:
        """Return a linear layer of int8 codes."""
        return Int8Linear(codes, scales, bias)

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        """Return a linear layer, its weight in few bits where there are kernels for it."""
        if weight.can_be_held(self.code_kernels, dtype):
            return QuantizedLinear(weight, bias, row_invariant)
        return PackedLinear(reference.dequantize(weight, dtype), bias, row_invariant)

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> PackedGroupedLinear:
        """Return the linear layers of many experts."""
        return PackedGroupedLinear(weights, bias)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> GroupedLinear:
        """Return the linear layers of many experts, in few bits where there are kernels for it."""
        if weights[0][0].can_be_held(self.code_kernels.of_experts, dtype):
            return QuantizedGroupedLinear(weights, bias)
        plain = [[reference.dequantize(each, dtype) for each in part] for part in weights]
        return PackedGroupedLinear(plain, bias)
