"""Backend: one made by these tests runs a model, and every call of the model goes through it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import pytest
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
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend, GroupedLinear, Linear
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.kernels.reference.backend import ReferenceBackend
from pagedrun.paged.bench.workload import BenchModel, Workload

P = ParamSpec("P")
R = TypeVar("R")

TINY = BenchModel.from_shape("tiny")
# mypy compares every signature of each with the protocol's.
BACKENDS: list[Backend] = [ReferenceBackend(), CpuBackend(), GpuBackend()]


class CountedAttention:
    """The reference's attention, its calls counted."""

    def __init__(self, attention: Attention, calls: Counter[str]) -> None:
        self._attention = attention
        self._calls = calls

    def prefill(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
    ) -> Tensor:
        self._calls["prefill"] += 1
        return self._attention.prefill(q, layer, softmax, window)

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        result = self._attention.prefix(q, layer, softmax)
        self._calls["prefix"] += result is not None
        return result

    def decode(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
        prefix: PrefixResult | None = None,
    ) -> Tensor:
        self._calls["decode"] += 1
        return self._attention.decode(q, layer, softmax, window, prefix)

    def regroup(self, groups: PrefixGroups) -> None:
        self._attention.regroup(groups)


class CountedBackend:
    """A backend that the package does not know: the reference, its calls counted."""

    name = "tests.counted"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._plain = plain = ReferenceBackend()
        self.route = self._counted("route", plain.route)
        self.combine_experts = self._counted("combine_experts", plain.combine_experts)
        self.rms_norm = self._counted("rms_norm", plain.rms_norm)
        self.add_rms_norm = self._counted("add_rms_norm", plain.add_rms_norm)
        self.silu_mul = self._counted("silu_mul", plain.silu_mul)
        self.gelu_tanh_mul = self._counted("gelu_tanh_mul", plain.gelu_tanh_mul)
        self.clipped_swiglu = self._counted("clipped_swiglu", plain.clipped_swiglu)
        self.cap_logits = self._counted("cap_logits", plain.cap_logits)
        self.rotary_store = self._counted("rotary_store", plain.rotary_store)
        self.mask_logits = self._counted("mask_logits", plain.mask_logits)
        self.sample = self._counted("sample", plain.sample)
        self.count_tokens = self._counted("count_tokens", plain.count_tokens)
        self.penalize = self._counted("penalize", plain.penalize)
        self.copy_blocks = self._counted("copy_blocks", plain.copy_blocks)
        self.token_logprobs = plain.token_logprobs
        self.swap_blocks = self._counted("swap_blocks", plain.swap_blocks)
        self.quantize_rows = plain.quantize_rows
        self.split_blocks = plain.split_blocks
        self.sigmoid_mul = plain.sigmoid_mul
        self.causal_conv = plain.causal_conv
        self.gated_delta_rule = plain.gated_delta_rule
        self.gated_rms_norm = plain.gated_rms_norm
        self.unpack_codes = plain.unpack_codes
        self.unpack_pairs = plain.unpack_pairs
        self.dequantize = plain.dequantize
        self.code_kernels = plain.code_kernels

    def _counted(self, name: str, op: Callable[P, R]) -> Callable[P, R]:
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            self.calls[name] += 1
            return op(*args, **kwargs)

        return counted

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> CountedAttention:
        self.calls["prepare"] += 1
        return CountedAttention(self._plain.prepare(inputs, shape, room=room), self.calls)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> Linear:
        self.calls["pack_linear"] += 1
        return self._plain.pack_linear(weight, bias, row_invariant=row_invariant)

    def pack_int8(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Linear:
        self.calls["pack_int8"] += 1
        return self._plain.pack_int8(codes, scales, bias)

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        self.calls["pack_quantized"] += 1
        return self._plain.pack_quantized(weight, dtype, bias, row_invariant=row_invariant)

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> GroupedLinear:
        self.calls["pack_grouped_linear"] += 1
        return self._plain.pack_grouped_linear(weights, bias)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> GroupedLinear:
        self.calls["pack_quantized_experts"] += 1
        return self._plain.pack_quantized_experts(weights, dtype, bias)


def test_a_backend_from_outside_runs_a_model() -> None:
    counted = CountedBackend()
    engine = TINY.engine(counted, dtype="float32", device="cpu")
    num_layers = TINY.config.num_layers
    assert counted.calls == {"pack_linear": 4 * num_layers + 1}
    requests = Workload(rows=10, shared=512, unique=5, output=4).requests(512)
    answers = sorted(engine.start(requests), key=lambda each: each.request.index)
    calls = counted.calls
    assert calls["prefill"] > 0
    # All rows decode together, three times, and read what they share together.
    assert calls["decode"] == calls["prefix"] == 3 * num_layers
    assert calls["silu_mul"] == calls["rotary_store"] == calls["prepare"] * num_layers
    assert calls["rms_norm"] == calls["prepare"], "a step is prepared once, for all layers"
    usual = TINY.engine(dtype="float32", device="cpu")
    expected = sorted(usual.start(requests), key=lambda each: each.request.index)
    assert [each.outputs for each in answers] == [each.outputs for each in expected]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_knows_its_bytes(backend: Backend, has_bias: bool) -> None:
    weight, bias = torch.randn(33, 20), torch.randn(33) if has_bias else None
    layer = backend.pack_linear(weight, bias, row_invariant=True)
    assert (layer.in_features, layer.out_features) == (20, 33)
    assert layer.num_bytes == 4 * 33 * (21 if has_bias else 20)
    assert layer.row_invariant == (backend.name != "pagedrun.kernels.reference")
