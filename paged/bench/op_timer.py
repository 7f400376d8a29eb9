"""Time of a run by operation.

The timer wraps the kernels between the model and the device, and adds up the seconds until each
call returns. It suits backends whose operations are finished when they return; on a GPU the
device profile takes its place.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    KVLayer,
    PrefixGroups,
    PrefixResult,
    Softmax,
)
from pagedrun.kernels.ops import Backend, GroupedLinear, Linear
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight

OpSeconds = Mapping[str, float]
ATTENTION = "attention"  # in the name of every op that reads keys and values

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class OpTimer:
    """A kernel backend that passes every call on and adds up the time until it returns.

    Give `kernels` to an engine in place of the backend; `seconds` and `calls` grow as it runs. Only
    for backends whose ops are done when they return.
    """

    def __init__(self, backend: Backend) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.kernels: Backend = _Timed(backend, self)

    def snapshot(self) -> OpSeconds:
        """Return the seconds of each op so far."""
        return dict(self.seconds)

    def since(self, snapshot: OpSeconds) -> OpSeconds:
        """Return the seconds of each op since a snapshot, of those that were called."""
        grown = {name: value - snapshot.get(name, 0.0) for name, value in self.seconds.items()}
        return {name: value for name, value in grown.items() if value > 0.0}

    def timed(self, name: str, op: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return an op that counts its calls and their seconds under `name`."""

        def timed(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            began = perf_counter()
            result = op(*args, **kwargs)
            self.note(name, perf_counter() - began)
            return result

        return timed

    def note(self, name: str, seconds: float) -> None:
        """Count one call of an op."""
        self.seconds[name] += seconds
        self.calls[name] += 1


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


class _Timed(BackendWrapper):
    def __init__(self, backend: Backend, timer: OpTimer) -> None:
        super().__init__(backend)
        self._timer = timer
        self.route = timer.timed("route", backend.route)
        self.combine_experts = timer.timed("combine_experts", backend.combine_experts)
        self.rms_norm = timer.timed("rms_norm", backend.rms_norm)
        self.add_rms_norm = timer.timed("add_rms_norm", backend.add_rms_norm)
        self.silu_mul = timer.timed("silu_mul", backend.silu_mul)
        self.gelu_tanh_mul = timer.timed("gelu_tanh_mul", backend.gelu_tanh_mul)
        self.clipped_swiglu = timer.timed("clipped_swiglu", backend.clipped_swiglu)
        self.sigmoid_mul = timer.timed("sigmoid_mul", backend.sigmoid_mul)
        self.causal_conv = timer.timed("causal_conv", backend.causal_conv)
        self.gated_delta_rule = timer.timed("gated_delta_rule", backend.gated_delta_rule)
        self.gated_rms_norm = timer.timed("gated_rms_norm", backend.gated_rms_norm)
        self.cap_logits = timer.timed("cap_logits", backend.cap_logits)
        self.rotary_store = timer.timed("rotary_store", backend.rotary_store)
        self.mask_logits = timer.timed("mask_logits", backend.mask_logits)
        self.sample = timer.timed("sample", backend.sample)
        self.count_tokens = timer.timed("count_tokens", backend.count_tokens)
        self.penalize = timer.timed("penalize", backend.penalize)
        self.token_logprobs = timer.timed("token_logprobs", backend.token_logprobs)
        self.copy_blocks = timer.timed("copy_blocks", backend.copy_blocks)
        self.swap_blocks = timer.timed("swap_blocks", backend.swap_blocks)

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        return _TimedAttention(super().prepare(inputs, shape, room=room), self._timer)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> Linear:
        packed = super().pack_linear(weight, bias, row_invariant=row_invariant)
        return _TimedLinear(packed, self._timer, "PackedLinear")

    def pack_int8(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Linear:
        packed = super().pack_int8(codes, scales, bias)
        return _TimedLinear(packed, self._timer, "Int8Linear")

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        packed = super().pack_quantized(weight, dtype, bias, row_invariant=row_invariant)
        return _TimedLinear(packed, self._timer, "QuantizedLinear")

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> GroupedLinear:
        return _TimedGroupedLinear(super().pack_grouped_linear(weights, bias), self._timer)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> GroupedLinear:
        packed = super().pack_quantized_experts(weights, dtype, bias)
        return _TimedGroupedLinear(packed, self._timer)


class _TimedAttention:
    def __init__(self, attention: Attention, timer: OpTimer) -> None:
        self._attention = attention
        self._timer = timer
        self.prefill = timer.timed("prefill_attention", attention.prefill)
        self.decode = timer.timed("decode_attention", attention.decode)

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Count it only where rows do read together."""
        began = perf_counter()
        result = self._attention.prefix(q, layer, softmax)
        if result is not None:
            self._timer.note("prefix_attention", perf_counter() - began)
        return result

    def regroup(self, groups: PrefixGroups) -> None:
        self._attention.regroup(groups)


class _TimedLinear:
    def __init__(self, linear: Linear, timer: OpTimer, name: str) -> None:
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.num_bytes, self.is_packed = linear.num_bytes, linear.is_packed
        self.row_invariant = linear.row_invariant
        self._multiply = timer.timed(name, linear.__call__)

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x)


class _TimedGroupedLinear:
    def __init__(self, linear: GroupedLinear, timer: OpTimer) -> None:
        self.num_experts, self.num_bytes = linear.num_experts, linear.num_bytes
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.row_invariant = linear.row_invariant
        self._multiply = timer.timed("PackedGroupedLinear", linear.__call__)

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        return self._multiply(x, starts, tokens)


def attention_seconds(seconds: OpSeconds) -> float:
    """Return the seconds of all ops that are attention."""
    return sum(value for name, value in seconds.items() if ATTENTION in name)
