"""BackendWrapper: a backend that passes every call on to another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention import Attention, AttentionShape
from pagedrun.kernels.attention.attention_inputs import AttentionInputs
from pagedrun.kernels.backend import Backend
from pagedrun.kernels.code_kernels import CodeKernels
from pagedrun.kernels.experts.grouped_linear import GroupedLinear
from pagedrun.kernels.linear import Linear
from pagedrun.kernels.packed_weight import PackedWeight


class BackendWrapper:
    """Implements `Backend` by `backend`. Subclasses change what they look at."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.route = backend.route
        self.combine_experts = backend.combine_experts
        self.rms_norm = backend.rms_norm
        self.add_rms_norm = backend.add_rms_norm
        self.silu_mul = backend.silu_mul
        self.gelu_tanh_mul = backend.gelu_tanh_mul
        self.clipped_swiglu = backend.clipped_swiglu
        self.sigmoid_mul = backend.sigmoid_mul
        self.causal_conv = backend.causal_conv
        self.gated_delta_rule = backend.gated_delta_rule
        self.gated_rms_norm = backend.gated_rms_norm
        self.cap_logits = backend.cap_logits
        self.rotary_store = backend.rotary_store
        self.mask_logits = backend.mask_logits
        self.sample = backend.sample
        self.count_tokens = backend.count_tokens
        self.penalize = backend.penalize
        self.token_logprobs = backend.token_logprobs
        self.copy_blocks = backend.copy_blocks
        self.swap_blocks = backend.swap_blocks
        self.quantize_rows = backend.quantize_rows
        self.split_blocks = backend.split_blocks
        self.unpack_codes = backend.unpack_codes
        self.unpack_pairs = backend.unpack_pairs
        self.dequantize = backend.dequantize

    @property
    def name(self) -> str:
        """The name of the backend behind it, whose bytes it gives."""
        return self._backend.name

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        """Return the attention of a step."""
        return self._backend.prepare(inputs, shape, room=room)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> Linear:
        """Return a linear layer."""
        return self._backend.pack_linear(weight, bias, row_invariant=row_invariant)

    def pack_int8(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Linear:
        """Return a linear layer of int8 codes."""
        return self._backend.pack_int8(codes, scales, bias)

    @property
    def code_kernels(self) -> CodeKernels:
        """Which kernels it has for weights of few bits."""
        return self._backend.code_kernels

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        """Return a linear layer with a weight in few bits."""
        return self._backend.pack_quantized(weight, dtype, bias, row_invariant=row_invariant)

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> GroupedLinear:
        """Return the linear layers of many experts."""
        return self._backend.pack_grouped_linear(weights, bias)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> GroupedLinear:
        """Return the linear layers of many experts, in few bits where there are kernels for it."""
        return self._backend.pack_quantized_experts(weights, dtype, bias)
