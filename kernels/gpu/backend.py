"""The backend of NVIDIA and AMD GPUs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.gpu import (
    activations,
    expert_routing,
    kv_cache,
    logits,
    norms,
    recurrence,
    sampling,
)
from pagedrun.kernels.gpu.attention import decode_attention as decode
from pagedrun.kernels.gpu.attention import prefill_attention as prefill
from pagedrun.kernels.gpu.attention import prefix_attention as prefix
from pagedrun.kernels.gpu.attention.prefix_attention import GpuAttention
from pagedrun.kernels.gpu.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.gpu.linear import Int8Linear, PackedLinear
from pagedrun.kernels.gpu.quantized.code_tensors import CodeTensors
from pagedrun.kernels.gpu.quantized.linear import QuantizedGroupedLinear, QuantizedLinear
from pagedrun.kernels.ops import Backend, GroupedLinear, Linear
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight


class GpuBackend(Backend):
    """Operations in Triton kernels and the vendor's products, and `AttentionOps`.

    Penalties, which few rows ask for, and the unpacking of weights are the reference's.
    """

    name = "pagedrun.kernels.gpu"
    code_kernels = CodeKernels.GPU
    LAYER_PARTS = (
        *(PackedLinear, Int8Linear, PackedGroupedLinear),
        *(QuantizedLinear, QuantizedGroupedLinear, CodeTensors),
    )

    route = staticmethod(expert_routing.route)
    combine_experts = staticmethod(expert_routing.combine_experts)
    rms_norm = staticmethod(norms.rms_norm)
    add_rms_norm = staticmethod(norms.add_rms_norm)
    gated_rms_norm = staticmethod(norms.gated_rms_norm)
    layer_norm = staticmethod(norms.layer_norm)
    add_layer_norm = staticmethod(norms.add_layer_norm)
    silu_mul = staticmethod(activations.silu_mul)
    gelu_tanh_mul = staticmethod(activations.gelu_tanh_mul)
    clipped_swiglu = staticmethod(activations.clipped_swiglu)
    sigmoid_mul = staticmethod(activations.sigmoid_mul)
    causal_conv = staticmethod(recurrence.causal_conv)
    gated_delta_rule = staticmethod(recurrence.gated_delta_rule)
    rotary_store = staticmethod(kv_cache.rotary_store)
    copy_blocks = staticmethod(kv_cache.copy_blocks)
    swap_blocks = staticmethod(kv_cache.swap_blocks)
    cap_logits = staticmethod(logits.cap_logits)
    sample = staticmethod(sampling.sample)
    token_logprobs = staticmethod(logits.token_logprobs)
    prefill_attention = staticmethod(prefill.prefill_attention)
    prefix_attention = staticmethod(prefix.prefix_attention)
    decode_attention = staticmethod(decode.decode_attention)

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> GpuAttention:
        """Return the attention of a step, its groups converted to work items."""
        return GpuAttention.of(inputs, self, shape, room)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        """Return a linear layer: the vendor's product, or our own where rows are invariant."""
        return PackedLinear(weight, bias, row_invariant)

    def pack_int8(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, shifts: bool = False
    ) -> Int8Linear:
        """Return a linear layer of int8 codes."""
        return Int8Linear(codes, scales, bias, shifts=shifts)

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        """Return a linear layer, quantized where there are kernels for it."""
        if weight.can_be_held(self.code_kernels, dtype):
            return QuantizedLinear(weight, bias, row_invariant)
        return super().pack_quantized(weight, dtype, bias, row_invariant=row_invariant)

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
        """Return the linear layers of many experts, quantized where there are kernels for it."""
        if weights[0][0].can_be_held(self.code_kernels.of_experts, dtype):
            return QuantizedGroupedLinear(weights, bias)
        return super().pack_quantized_experts(weights, dtype, bias)
