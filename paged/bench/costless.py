"""Backend and GPU that compute nothing, for measurements of the host.

Every operation returns a tensor of the right shape with arbitrary content; tokens are drawn in
advance. The GPU captures decode steps and replays them as nothing, one step ahead of the host. Both
count the operations, replays and copies that steps request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from pagedrun.kernels import reference
from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    HeadNorms,
    KVLayer,
    PrefixGroups,
    PrefixResult,
    Softmax,
)
from pagedrun.kernels.expert_choice import ExpertChoice
from pagedrun.kernels.op_values import Routing, StateInputs, TokenLogprobs
from pagedrun.kernels.partition import ON_GPU, ReadOnce
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.paged.execution.device import CapturedStep, Device, HostCopy

NUM_DRAWN = 1 << 16
FIRST_TOKEN = 2  # those before it end a sequence


class CostlessBackend:
    """Every op returns the right shape with any content; tokens are drawn at random beforehand.

    Weights are read as everywhere. `counts` has what a model of one layer asked for.
    """

    name = "costless"
    code_kernels = CodeKernels.NONE
    quantize_rows = staticmethod(reference.quantize_rows)
    split_blocks = staticmethod(reference.split_blocks)
    unpack_codes = staticmethod(reference.unpack_codes)
    unpack_pairs = staticmethod(reference.unpack_pairs)
    dequantize = staticmethod(reference.dequantize)

    def __init__(self, vocab_size: int) -> None:
        self.counts = StepCounts()
        generator = torch.Generator().manual_seed(0)
        self._drawn = torch.randint(FIRST_TOKEN, vocab_size, (NUM_DRAWN,), generator=generator)
        self._num_given = 0

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> "CostlessAttention":
        """Return attention that gives queries back."""
        return CostlessAttention(self.counts)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> "CostlessLinear":
        """Return a layer of the same shape."""
        return CostlessLinear(weight)

    def pack_int8(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None
    ) -> "CostlessLinear":
        """Return a layer of the same shape."""
        return CostlessLinear(codes, scales.dtype)

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> "CostlessLinear":
        """Return a layer of the same shape."""
        return CostlessLinear(weight.codes.new_empty(weight.codes.shape, dtype=dtype))

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> "CostlessGroupedLinear":
        """Return layers of the same shape."""
        return CostlessGroupedLinear(weights)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> "CostlessGroupedLinear":
        """Return layers of the same shape."""
        return CostlessGroupedLinear(
            [[each.codes.new_empty(each.codes.shape, dtype=dtype) for each in p] for p in weights]
        )

    def route(
        self, logits: Tensor, choice: ExpertChoice, correction: Tensor | None = None
    ) -> Routing:
        """Choose the first experts."""
        shape = (len(logits), choice.num_chosen)
        return Routing(torch.arange(shape[1]).expand(shape), torch.ones(1, 1).expand(shape))

    def combine_experts(
        self,
        outputs: Tensor,
        rows: Tensor,
        weights: Tensor,
        shared: Tensor | None = None,
        shared_gate: Tensor | None = None,
    ) -> Tensor:
        """Return what the experts of the first rows computed."""
        return outputs[: len(rows)]

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Return x."""
        return x

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x."""
        return x

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return the gate."""
        return gate_up[:, : gate_up.shape[1] // 2]

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """Return the gate."""
        return gate_up[:, : gate_up.shape[1] // 2]

    def clipped_swiglu(self, gate_up: Tensor, limit: float, alpha: float) -> Tensor:
        """Return the gate."""
        return gate_up[:, : gate_up.shape[1] // 2]

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x."""
        return x

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        inputs: StateInputs,
        activate: bool,
    ) -> Tensor:
        """Return x, and write no state."""
        return x

    def gated_delta_rule(
        self,
        qkv: Tensor,
        gates: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        inputs: StateInputs,
    ) -> Tensor:
        """Return the values, and write no state."""
        return qkv[:, qkv.shape[1] - state.shape[1] * state.shape[3] :]

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x."""
        return x

    def cap_logits(self, logits: Tensor, cap: float) -> None:
        """Bend nothing."""

    def rotary_store(
        self,
        qkv: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        layer: KVLayer,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Return the queries, and store nothing."""
        num_heads = layer.num_query_heads(qkv)
        return torch.unflatten(qkv, 1, (-1, layer.head_dim))[:, :num_heads]

    def mask_logits(self, logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
        """Mask nothing."""

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seed: Tensor,
        row: Tensor,
        sample: Tensor,
        position: Tensor,
        *,
        filtered: bool = True,
    ) -> Tensor:
        """Return the next of the tokens that were drawn, [num_rows] int64."""
        return self.draw(len(logits)).clone()

    def draw(self, count: int) -> Tensor:
        """Return the next of the tokens that were drawn, [count] int64; not to be written to."""
        first = self._num_given if self._num_given + count <= NUM_DRAWN else 0
        self._num_given = first + count
        return self._drawn[first : self._num_given]

    def count_tokens(
        self, token_ids: Tensor, counts: Tensor, num_ids: Tensor, places: Tensor, tokens: Tensor
    ) -> None:
        """Count nothing."""

    def penalize(
        self,
        logits: Tensor,
        rows: Tensor,
        places: Tensor,
        token_ids: Tensor,
        counts: Tensor,
        num_ids: Tensor,
        repetition: Tensor,
        presence: Tensor,
        frequency: Tensor,
    ) -> None:
        """Change nothing."""

    def token_logprobs(
        self, logits: Tensor, rows: Tensor, ids: Tensor, num_top: int
    ) -> TokenLogprobs:
        """Return zeros."""
        shape = (len(ids), num_top)
        return TokenLogprobs(
            torch.zeros(len(ids)),
            torch.zeros(len(ids), dtype=torch.int64),
            torch.zeros(shape, dtype=torch.int64),
            torch.zeros(shape),
        )

    def copy_blocks(self, kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
        """Move nothing."""

    def swap_blocks(
        self, src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor
    ) -> None:
        """Move nothing."""


class CostlessLinear:
    """Returns one value, seen as often as there are elements."""

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
    """As `CostlessLinear`, for many experts."""

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
    """Counted in one run.

    `prefills`, `decodes`: steps whose prompt tokens, whose generated ones were computed kernel by
    kernel; a mixed step counts in both, unless its generated tokens were a captured step's.
    `replays`: launches of captured steps, `captures` how many there are. `copies`, `bytes_copied`:
    from host to device.
    """

    prefills: int = 0
    decodes: int = 0
    replays: int = 0
    captures: int = 0
    copies: int = 0
    bytes_copied: int = 0

    def clear(self) -> None:
        """Count from nothing."""
        for each in fields(self):
            setattr(self, each.name, 0)


class CostlessAttention:
    """Gives queries back, and counts how often."""

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts

    def prefill(
        self,
        q: Tensor,
        layer: KVLayer,
        softmax: Softmax,
        window: int | None = None,
    ) -> Tensor:
        """Return the queries."""
        self._counts.prefills += 1
        return q

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Return nothing to go on from."""
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
        """Forget who reads with whom."""


@dataclass(frozen=True, slots=True)
class CostlessGpu(Device):
    """The host is a step ahead of it, and decode steps are captured and replayed, as nothing.

    A copy to it takes the host's own copy and no driver's call: `counts` says how many there are.
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
        """As a GPU is."""
        return True

    @property
    def captures(self) -> bool:
        """As a GPU does."""
        return True

    @property
    def read_once(self) -> ReadOnce:
        """As on a GPU."""
        return ON_GPU

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Do a step once, to see what it returns."""
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
    """Draws other tokens at each replay."""

    ids: Tensor
    device: CostlessGpu

    def replay(self) -> None:
        """Count it."""
        self.device.counts.replays += 1
        kernels = self.device.kernels
        assert isinstance(kernels, CostlessBackend), "made with other kernels"
        self.ids.copy_(kernels.draw(len(self.ids)))
