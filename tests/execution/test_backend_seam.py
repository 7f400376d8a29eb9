"""Backend: one made by these tests runs a model, and every call of the model goes through it."""

from collections import Counter
from collections.abc import Callable
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
from pagedrun.kernels.ops import Backend
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.tiny_models import tiny_config, tiny_engine

P = ParamSpec("P")
R = TypeVar("R")

BACKENDS = [Backend(), CpuBackend(), GpuBackend()]


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


class CountedBackend(Backend):
    """A backend that the package does not know: the reference, its calls counted."""

    name = "tests.counted"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        for name in (*self.OPS, *self.PACKS):
            setattr(self, name, self._counted(name, getattr(self, name)))

    def _counted(self, name: str, op: Callable[P, R]) -> Callable[P, R]:
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            self.calls[name] += 1
            return op(*args, **kwargs)

        return counted

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> CountedAttention:
        self.calls["prepare"] += 1
        return CountedAttention(super().prepare(inputs, shape, room=room), self.calls)


def test_a_backend_from_outside_runs_a_model() -> None:
    counted = CountedBackend()
    engine = tiny_engine(counted, dtype="float32", device="cpu")
    num_layers = tiny_config().num_layers
    assert counted.calls == {"pack_linear": 4 * num_layers + 1}
    shared, params = tuple(range(512)), SamplingParams(max_tokens=4, ignore_eos=True)
    requests = [Request(i, (*shared, *range(i, i + 5)), params) for i in range(10)]
    answers = sorted(engine.start(requests), key=lambda each: each.request.index)
    calls = counted.calls
    assert calls["prefill"] > 0
    # All rows decode together, three times, and read what they share together.
    assert calls["decode"] == calls["prefix"] == 3 * num_layers
    assert calls["silu_mul"] == calls["rotary_store"] == calls["prepare"] * num_layers
    assert calls["rms_norm"] == calls["prepare"], "a step is prepared once, for all layers"
    usual = tiny_engine(dtype="float32", device="cpu")
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
