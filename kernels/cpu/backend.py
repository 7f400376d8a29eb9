"""The backend of a CPU, bound to one kernel set."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape, HostAttention
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.cpu import (
    activations,
    expert_routing,
    kv_cache,
    logits,
    norms,
    recurrence,
    sampling,
    weights,
)
from pagedrun.kernels.cpu.attention import decode_attention as decode
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.cpu.grouped_linear import PackedGroupedLinear
from pagedrun.kernels.cpu.linears import int8_linear
from pagedrun.kernels.cpu.linears.amx_linear import AmxLinear
from pagedrun.kernels.cpu.linears.int8_linear import Int8Amx, Int8Linear, Int8Quads
from pagedrun.kernels.cpu.linears.linear import FmaLinear, PackedLinear
from pagedrun.kernels.cpu.linears.onednn_linear import OneDnnLinear, RowHeights
from pagedrun.kernels.cpu.quantized.code_arrays import CodeArrays
from pagedrun.kernels.cpu.quantized.int8_tiles import SumTiles
from pagedrun.kernels.cpu.quantized.linear import (
    AmxProducts,
    PairProducts,
    PanelProducts,
    QuantizedExperts,
    QuantizedLinear,
)
from pagedrun.kernels.cpu.quantized.pair_product import Chains, PairArrays
from pagedrun.kernels.cpu.quantized.panel_codes import PanelArrays
from pagedrun.kernels.cpu.recording import Recording, current_recorder
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.ops import Backend, GroupedLinear, Linear
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import PackedWeight

Result = TypeVar("Result")


class CpuBackend(Backend):
    """Operations in Numba and oneDNN, and `AttentionOps`, with products in `kernel_set`.

    None is the fastest set of this processor. `activations`: inputs of linear layers with quantized
    weights. Raises `ValueError` for a set that the processor cannot run.
    """

    name = "pagedrun.kernels.cpu"
    records = True
    LAYER_PARTS = (
        *(PackedLinear, FmaLinear, AmxLinear, OneDnnLinear, RowHeights),
        *(Int8Linear, Int8Amx, Int8Quads, PackedGroupedLinear),
        *(QuantizedLinear, QuantizedExperts, PanelProducts, AmxProducts, PairProducts),
        *(CodeArrays, PanelArrays, PairArrays, Chains, SumTiles),
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
    gelu = staticmethod(activations.gelu)
    gelu_tanh = staticmethod(activations.gelu_tanh)
    gelu_mul = staticmethod(activations.gelu_mul)
    clipped_swiglu = staticmethod(activations.clipped_swiglu)
    sigmoid_mul = staticmethod(activations.sigmoid_mul)
    causal_conv = staticmethod(recurrence.causal_conv)
    gated_delta_rule = staticmethod(recurrence.gated_delta_rule)
    rotary_store = staticmethod(kv_cache.rotary_store)
    copy_blocks = staticmethod(kv_cache.copy_blocks)
    swap_blocks = staticmethod(kv_cache.swap_blocks)
    cap_logits = staticmethod(logits.cap_logits)
    mask_logits = staticmethod(logits.mask_logits)
    count_tokens = staticmethod(logits.count_tokens)
    penalize = staticmethod(logits.penalize)
    sample = staticmethod(sampling.sample)
    token_logprobs = staticmethod(logits.token_logprobs)
    quantize_rows = staticmethod(int8_linear.quantize_rows)
    split_blocks = staticmethod(weights.split_blocks)
    unpack_codes = staticmethod(weights.unpack_codes)
    unpack_pairs = staticmethod(weights.unpack_pairs)
    dequantize = staticmethod(weights.dequantize)
    decode_attention = staticmethod(decode.decode_attention)

    def __init__(
        self,
        kernel_set: KernelSet | None = None,
        activations: Activations = Activations.AUTO,
    ) -> None:
        self.activations = activations
        self.kernel_set = KernelSet.usable(kernel_set)
        self.code_kernels = self.kernel_set.code_kernels
        self.prefill_attention = partial(
            group_attention.prefill_attention, kernel_set=self.kernel_set
        )
        self.prefix_attention = partial(
            group_attention.prefix_attention, kernel_set=self.kernel_set
        )

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> HostAttention:
        """Return the attention of a step: groups are read as they are."""
        return HostAttention.of(inputs, self)

    def record(self, step: Callable[[], Result]) -> Recording[Result]:
        """Compute a step and return it as it can be replayed."""
        return Recording(step)

    def call_on_host(self, function: Callable[[], None]) -> None:
        """Call a function now, and at each replay of a step that is being recorded."""
        function()
        recorder = current_recorder()
        if recorder is not None:
            recorder.note(function, ())

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        """Return a linear layer; its rows are invariant with and without `row_invariant`."""
        return PackedLinear(weight, bias, self.kernel_set)

    def pack_int8(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, shifts: bool = False
    ) -> Int8Linear:
        """Return a linear layer of int8 codes."""
        return Int8Linear(codes, scales, bias, self.kernel_set, shifts=shifts)

    def gelu_mlp(self, up: Linear, down: Linear, x: Tensor) -> Tensor:
        """Return `down(gelu(up(x)))`, of int8 layers without the numbers between in memory."""
        joined = int8_linear.joined_gelu_mlp(up, down, x)
        return super().gelu_mlp(up, down, x) if joined is None else joined

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        """Return a linear layer, quantized where there are kernels for it."""
        if not weight.can_be_held(self.code_kernels, dtype):
            return super().pack_quantized(weight, dtype, bias, row_invariant=row_invariant)
        return QuantizedLinear(
            weight, bias, self.kernel_set, dtype=dtype, activations=self.activations
        )

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
    ) -> GroupedLinear:
        """Return the linear layers of many experts, quantized where there are kernels for it."""
        if not weights[0][0].can_be_held(self.code_kernels.of_experts, dtype):
            return super().pack_quantized_experts(weights, dtype, bias)
        return QuantizedExperts(
            weights, bias, self.kernel_set, dtype=dtype, activations=self.activations
        )
