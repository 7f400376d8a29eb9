"""The backend of a CPU, bound to one kernel set."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pagedrun.kernels import cpu
from pagedrun.kernels.attention import AttentionShape, HostAttention
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.cpu.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.cpu.linears.int8_linear import Int8Linear
from pagedrun.kernels.cpu.linears.linear import PackedLinear
from pagedrun.kernels.cpu.quantized.linear import QuantizedLinear
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.ops import Linear
from pagedrun.kernels.quantized_weight import PackedWeight


class CpuBackend:
    """Implements `Backend` and `AttentionOps` with products in `kernel_set`.

    None is the fastest set of this processor. Raises `ValueError` for one that it cannot run.
    """

    name = "pagedrun.kernels.cpu"

    route = staticmethod(cpu.route)
    combine_experts = staticmethod(cpu.combine_experts)
    causal_conv = staticmethod(cpu.causal_conv)
    gated_delta_rule = staticmethod(cpu.gated_delta_rule)
    gated_rms_norm = staticmethod(cpu.gated_rms_norm)
    rms_norm = staticmethod(cpu.rms_norm)
    add_rms_norm = staticmethod(cpu.add_rms_norm)
    silu_mul = staticmethod(cpu.silu_mul)
    gelu_tanh_mul = staticmethod(cpu.gelu_tanh_mul)
    clipped_swiglu = staticmethod(cpu.clipped_swiglu)
    sigmoid_mul = staticmethod(cpu.sigmoid_mul)
    cap_logits = staticmethod(cpu.cap_logits)
    rotary_store = staticmethod(cpu.rotary_store)
    decode_attention = staticmethod(cpu.decode_attention)
    mask_logits = staticmethod(cpu.mask_logits)
    sample = staticmethod(cpu.sample)
    count_tokens = staticmethod(cpu.count_tokens)
    penalize = staticmethod(cpu.penalize)
    token_logprobs = staticmethod(cpu.token_logprobs)
    copy_blocks = staticmethod(cpu.copy_blocks)
    swap_blocks = staticmethod(cpu.swap_blocks)
    quantize_rows = staticmethod(cpu.quantize_rows)
    split_blocks = staticmethod(cpu.split_blocks)
    unpack_codes = staticmethod(cpu.unpack_codes)
    unpack_pairs = staticmethod(cpu.unpack_pairs)
    dequantize = staticmethod(cpu.dequantize)

    def __init__(self, kernel_set: KernelSet | None = None) -> None:
        self.kernel_set = KernelSet.usable(kernel_set)
        self.code_kernels = self.kernel_set.code_kernels
        self.prefill_attention = partial(cpu.prefill_attention, kernel_set=self.kernel_set)
        self.prefix_attention = partial(cpu.prefix_attention, kernel_set=self.kernel_set)

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> HostAttention:
        """Return the attention of a step: groups are read as they are."""
        return HostAttention.of(inputs, self)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        """Return a linear layer; its rows are invariant whether that is asked for or not."""
        return PackedLinear(weight, bias, self.kernel_set)

    def pack_int8(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Int8Linear:
        """Return a linear layer of int8 codes."""
        return Int8Linear(codes, scales, bias, self.kernel_set)

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
            return QuantizedLinear(weight, bias, self.kernel_set)
        return PackedLinear(cpu.dequantize(weight, dtype), bias, self.kernel_set)

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> PackedGroupedLinear:
        """Return the linear layers of many experts."""
        return PackedGroupedLinear(weights, bias, self.kernel_set)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> PackedGroupedLinear:
        """Return the linear layers of many experts, their weights dequantised."""
        plain = [[cpu.dequantize(each, dtype) for each in part] for part in weights]
        return PackedGroupedLinear(plain, bias, self.kernel_set)
