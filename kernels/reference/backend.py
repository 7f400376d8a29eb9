"""The reference as a backend: to check the fast ones by, in a whole model too."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedrun.kernels import reference
from pagedrun.kernels.attention import AttentionShape, HostAttention
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.kernels.reference.experts import PackedGroupedLinear
from pagedrun.kernels.reference.linear import Int8Linear, PackedLinear


class ReferenceBackend:
    """Implements `Backend` and `AttentionOps` in plain PyTorch, on any device."""

    name = "pagedrun.kernels.reference"
    code_kernels = CodeKernels.NONE

    route = staticmethod(reference.route)
    combine_experts = staticmethod(reference.combine_experts)
    causal_conv = staticmethod(reference.causal_conv)
    gated_delta_rule = staticmethod(reference.gated_delta_rule)
    gated_rms_norm = staticmethod(reference.gated_rms_norm)
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    silu_mul = staticmethod(reference.silu_mul)
    gelu_tanh_mul = staticmethod(reference.gelu_tanh_mul)
    clipped_swiglu = staticmethod(reference.clipped_swiglu)
    sigmoid_mul = staticmethod(reference.sigmoid_mul)
    cap_logits = staticmethod(reference.cap_logits)
    rotary_store = staticmethod(reference.rotary_store)
    prefill_attention = staticmethod(reference.prefill_attention)
    prefix_attention = staticmethod(reference.prefix_attention)
    decode_attention = staticmethod(reference.decode_attention)
    mask_logits = staticmethod(reference.mask_logits)
    sample = staticmethod(reference.sample)
    count_tokens = staticmethod(reference.count_tokens)
    penalize = staticmethod(reference.penalize)
    token_logprobs = staticmethod(reference.token_logprobs)
    copy_blocks = staticmethod(reference.copy_blocks)
    swap_blocks = staticmethod(reference.swap_blocks)
    quantize_rows = staticmethod(reference.quantize_rows)
    split_blocks = staticmethod(reference.split_blocks)
    unpack_codes = staticmethod(reference.unpack_codes)
    unpack_pairs = staticmethod(reference.unpack_pairs)
    dequantize = staticmethod(reference.dequantize)

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> HostAttention:
        """Return the attention of a step: there is nothing to prepare."""
        return HostAttention.of(inputs, self)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        """Return a linear layer, the weight as it is."""
        return PackedLinear(weight, bias)

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
    ) -> PackedLinear:
        """Return a linear layer, its weight dequantised."""
        return PackedLinear(reference.dequantize(weight, dtype), bias)

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
    ) -> PackedGroupedLinear:
        """Return the linear layers of many experts, their weights dequantised."""
        plain = [[reference.dequantize(each, dtype) for each in part] for part in weights]
        return PackedGroupedLinear(plain, bias)
