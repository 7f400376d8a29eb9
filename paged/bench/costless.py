"""Backend and GPU that compute nothing, for measurements of the host.

Every operation returns a tensor of the right shape with arbitrary content; tokens are drawn in
advance. The GPU captures decode steps and replays them as nothing, one step ahead of the host. Both
count the operations, replays and copies that steps request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    KVLayer,
    PrefixGroups,
    PrefixResult,
    Softmax,
)
from pagedrun.kernels.expert_choice import ExpertChoice
from pagedrun.kernels.op_values import Routing, TokenLogprobs
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import ON_GPU, ReadOnce
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.paged.execution.device import CapturedStep, Device, HostCopy

NUM_DRAWN = 1 << 16
FIRST_TOKEN = 2  # those before it end a sequence


def _first(x: Tensor, *rest: object, **named: object) -> Tensor:
    """Return the first argument."""
    return x


def _gate(gate_up: Tensor, *rest: object) -> Tensor:
    """Return the gate of gate and up side by side."""
    return gate_up[:, : gate_up.shape[1] // 2]


def _nothing(*arguments: object) -> None:
    """Change nothing."""


def _dequantize(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Return a matrix of the same shape."""
    return torch.empty(weight.codes.shape, dtype=dtype, device=weight.device)


def _route(logits: Tensor, choice: ExpertChoice, *rest: object, **named: object) -> Routing:
    """Return the first experts."""
    shape = (len(logits), choice.num_chosen)
    return Routing(torch.arange(shape[1]).expand(shape), torch.ones(1, 1).expand(shape))


def _combine_experts(outputs: Tensor, rows: Tensor, *rest: object, **named: object) -> Tensor:
    """Return the outputs of the first rows."""
    return outputs[: len(rows)]


def _gated_delta_rule(
    qkv: Tensor,
    gates: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    *rest: object,
    **named: object,
) -> Tensor:
    """Return the values; the state is unchanged."""
    return qkv[:, qkv.shape[1] - state.shape[1] * state.shape[3] :]


def _rotary_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    layer: KVLayer,
    *rest: object,
    **named: object,
) -> Tensor:
    """Return the queries; nothing is stored."""
    num_heads = layer.num_query_heads(qkv)
    return torch.unflatten(qkv, 1, (-1, layer.head_dim))[:, :num_heads]


def _token_logprobs(logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    """Return zeros."""
    count, shape = len(ids), (len(ids), num_top)
    return TokenLogprobs(
        torch.zeros(count),
        torch.zeros(count, dtype=torch.int64),
        torch.zeros(shape, dtype=torch.int64),
        torch.zeros(shape),
    )


_COSTLESS: dict[str, Callable[..., object]] = {
    **dict.fromkeys(
        ("rms_norm", "add_rms_norm", "gated_rms_norm", "sigmoid_mul", "causal_conv"), _first
    ),
    **dict.fromkeys(("silu_mul", "gelu_tanh_mul", "clipped_swiglu"), _gate),
    **dict.fromkeys(
        ("cap_logits", "mask_logits", "count_tokens", "penalize", "copy_blocks", "swap_blocks"),
        _nothing,
    ),
    "dequantize": _dequantize,
    "route": _route,
    "combine_experts": _combine_experts,
    "gated_delta_rule": _gated_delta_rule,
    "rotary_store": _rotary_store,
    "token_logprobs": _token_logprobs,
}


class CostlessBackend(Backend):
    """Backend whose operations return arbitrary content of the right shape, and drawn tokens.

    Operations on weights are the reference's. `counts`: calls of a model of one layer.
    """

    name = "costless"

    def __init__(self, vocab_size: int) -> None:
        self.counts = StepCounts()
        generator = torch.Generator().manual_seed(0)
        self._drawn = torch.randint(FIRST_TOKEN, vocab_size, (NUM_DRAWN,), generator=generator)
        self._num_given = 0
        for name, op in {**_COSTLESS, "sample": self._sample}.items():
            setattr(self, name, op)

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> "CostlessAttention":
        """Return attention whose results are the queries."""
        return CostlessAttention(self.counts)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> "CostlessLinear":
        """Return a layer of the same shape."""
        return CostlessLinear(weight)

    def pack_int8(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, shifts: bool = False
    ) -> "CostlessLinear":
        """Return a layer of the same shape."""
        return CostlessLinear(codes, scales.dtype)

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> "CostlessGroupedLinear":
        """Return layers of the same shape."""
        return CostlessGroupedLinear(weights)

    def _sample(self, logits: Tensor, *parameters: object, **named: object) -> Tensor:
        return self.draw(len(logits)).clone()

    def draw(self, count: int) -> Tensor:
        """Return the next drawn tokens, [count] int64; not to be written to."""
        first = self._num_given if self._num_given + count <= NUM_DRAWN else 0
        self._num_given = first + count
        return self._drawn[first : self._num_given]


class CostlessLinear:
    """Linear layer whose result is one value, expanded to the shape."""

    is_packed = False
    row_invariant = True

    def __init__(self, weight: Tensor, dtype: torch.dtype | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.num_bytes = weight.nbytes
        self._value = weight.new_empty(1, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features]."""
        return self._value.expand(len(x), self.out_features)


class CostlessGroupedLinear:
    """Linear layers of experts whose result is one value, expanded to the shape."""

    row_invariant = True

    def __init__(self, weights: Sequence[Sequence[Tensor]]) -> None:
        self.num_experts = len(weights[0])
        out_features, self.in_features = weights[0][0].shape
        self.out_features = len(weights) * out_features
        self.num_bytes = sum(matrix.nbytes for part in weights for matrix in part)
        self._value = weights[0][0].new_empty(1)

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return [num_rows, out_features]."""
        return self._value.expand(len(x if tokens is None else tokens), self.out_features)


@dataclass(slots=True)
class StepCounts:
    """Requests of a run to the device.

    `prefills`: steps that compute prompt tokens; `decodes`: steps that compute generated tokens
    kernel by kernel. A mixed step counts in both, unless its generated tokens are those of a
    captured step. `replays`: launches of the `captures` captured steps. `copies`, `bytes_copied`:
    from host to device.
    """

    prefills: int = 0
    decodes: int = 0
    replays: int = 0
    captures: int = 0
    copies: int = 0
    bytes_copied: int = 0

    def clear(self) -> None:
        """Set all counts to 0."""
        for each in fields(self):
            setattr(self, each.name, 0)


class CostlessAttention:
    """Attention whose results are the queries, with counted calls."""

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts

    def prefill(
        self, q: Tensor, layer: KVLayer, softmax: Softmax, window: int | None = None
    ) -> Tensor:
        """Return the queries."""
        self._counts.prefills += 1
        return q

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Return None."""
        return None

    def decode(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
        prefix: PrefixResult | None = None,
    ) -> Tensor:
        """Return the queries."""
        self._counts.decodes += 1
        return q

    def regroup(self, groups: PrefixGroups) -> None:
        """Ignore the groups."""


@dataclass(frozen=True, slots=True)
class CostlessGpu(Device):
    """GPU whose host is a step ahead of it; captured decode steps compute nothing.

    Copies to it are made by the host, without calls of a driver, and are counted in `counts`.
    """

    counts: StepCounts = field(default_factory=StepCounts)

    @classmethod
    def of(cls, kernels: CostlessBackend) -> "CostlessGpu":
        """Return a device with these kernels, and their counts."""
        return cls(
            torch.device("cpu"),
            kernels,
            async_scheduling=True,
            graphs=True,
            counts=kernels.counts,
        )

    @property
    def is_asynchronous(self) -> bool:
        """True, as of a GPU."""
        return True

    @property
    def captures(self) -> bool:
        """True, as of a GPU."""
        return True

    @property
    def read_once(self) -> ReadOnce:
        """As on a GPU."""
        return ON_GPU

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Do a step once, for the shape of its result."""
        before = replace(self.counts)
        ids = step()
        self.counts.decodes = before.decodes
        self.counts.captures += 1
        return CostlessStep(ids.clone(), self)

    def place(self, tensor: Tensor) -> Tensor:
        """Return a copy."""
        self.counts.copies += 1
        self.counts.bytes_copied += tensor.nbytes
        return tensor.clone()

    def to_host(self, tensor: Tensor) -> HostCopy:
        """Copy a tensor, which the next step may overwrite."""
        return HostCopy(tensor.clone())


@dataclass(frozen=True, slots=True)
class CostlessStep:
    """Captured step whose replays draw other tokens."""

    ids: Tensor
    device: CostlessGpu

    def replay(self) -> None:
        """Count the replay and draw tokens."""
        self.device.counts.replays += 1
        kernels = self.device.kernels
        assert isinstance(kernels, CostlessBackend), "made with other kernels"
        self.ids.copy_(kernels.draw(len(self.ids)))
