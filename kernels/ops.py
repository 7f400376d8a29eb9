"""Operations of a model step on one kind of device, and the linear layers that it packs.

Tensors in, tensors out. `pagedrun.kernels.reference` defines the result of each operation.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.attention_inputs import AttentionInputs, HeadNorms, KVLayer
from pagedrun.kernels.expert_choice import ExpertChoice
from pagedrun.kernels.op_values import Routing, StateInputs, TokenLogprobs
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight


class GroupedLinear(Protocol):
    """`y = x @ weight[e].T + bias[e]`, where each row x has an expert e; or without biases."""

    @property
    def num_experts(self) -> int:
        """How many weights there are."""
        ...

    @property
    def in_features(self) -> int:
        """Elements of a row of x."""
        ...

    @property
    def out_features(self) -> int:
        """Elements of a row of y."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights and biases."""
        ...

    @property
    def row_invariant(self) -> bool:
        """Whether a row of y has the same bytes whoever else has the same expert."""
        ...

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x.

        Rows are sorted by expert as `starts` says, see `ExpertRows`. Row i reads row `tokens[i]` of
        x [num_tokens, in_features]; None: x [num_rows, in_features] has a row for each. Weights of
        an expert without rows are not read.
        """
        ...


class Linear(Protocol):
    """`y = x @ weight.T + bias`."""

    @property
    def in_features(self) -> int:
        """Elements of a row of x."""
        ...

    @property
    def out_features(self) -> int:
        """Elements of a row of y."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight and the bias, without the padding of a layout."""
        ...

    @property
    def is_packed(self) -> bool:
        """Whether the weight lies in a layout of the backend's own, beside the one given."""
        ...

    @property
    def row_invariant(self) -> bool:
        """Whether a row of y has the same bytes whatever the number of rows."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        ...


class Backend(Protocol):
    """Tensors in, tensors out. What each op computes is said in `pagedrun.kernels.reference`."""

    @property
    def name(self) -> str:
        """What stored prefixes name as the kernels that computed them."""
        ...

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        """Return the attention of a step over `inputs`, whose tensors are on the device.

        Once a step, for all of its layers. `room` is for a step that is captured and replayed with
        other groups (see `Attention.regroup`): the partitions that all rows together may share.
        """
        ...

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> Linear:
        """Return `y = x @ weight.T + bias` as this backend computes it fastest.

        weight: [out_features, in_features]. bias: [out_features], same dtype, or None.
        `row_invariant` asks for rows whose bytes do not depend on the number of rows.
        """
        ...

    def pack_int8(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Linear:
        """Return `y = x @ (codes * scales).T + bias`, the rows of x quantised to int8 as well.

        codes: [out_features, in_features] int8. scales: [out_features] float32. bias:
        [out_features] in the dtype of x, or None. A row of y has the same bytes on every backend.
        """
        ...

    @property
    def code_kernels(self) -> CodeKernels:
        """Which kernels it has for weights of few bits."""
        ...

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        """Return `y = x @ weight.T + bias` for x in `dtype`, the weight held in few bits.

        The numbers multiplied are those of `dequantize`. A weight that `code_kernels` do not hold
        is held in `dtype`, as `pack_linear` does. The rest is as there.
        """
        ...

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> GroupedLinear:
        """Return the linear layers of many experts; their rows are invariant where this matters.

        weights: parts whose outputs lie side by side, each with a matrix [out_features,
        in_features] for each expert; all of one shape and dtype. bias: [num_experts, out_features
        of all parts], the same dtype, or None.
        """
        ...

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> GroupedLinear:
        """Return the linear layers of many experts, in few bits where there are kernels for it.

        weights: parts as `pack_grouped_linear` takes them, all of one form.
        """
        ...

    def route(
        self, logits: Tensor, choice: ExpertChoice, correction: Tensor | None = None
    ) -> Routing:
        """Choose the experts that each token passes."""
        ...

    def combine_experts(
        self,
        outputs: Tensor,
        rows: Tensor,
        weights: Tensor,
        shared: Tensor | None = None,
        shared_gate: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of what each token's experts computed."""
        ...

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Normalise each row of x [num_tokens, hidden_size] by its root mean square."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x to the float32 `residual` in place; return the sum, normalised."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return `silu(gate) * up` of gate and up side by side."""
        ...

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """Return `gelu(gate) * up` of gate and up side by side, gelu by its tanh form."""
        ...

    def clipped_swiglu(self, gate_up: Tensor, limit: float, alpha: float) -> Tensor:
        """Return `(up + 1) * gate * sigmoid(alpha * gate)` of gate and up, clipped."""
        ...

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return `x * sigmoid(gate)`."""
        ...

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        inputs: StateInputs,
        activate: bool,
    ) -> Tensor:
        """Return each channel's last inputs, weighted; write the states behind the chunks."""
        ...

    def gated_delta_rule(
        self,
        qkv: Tensor,
        gates: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        inputs: StateInputs,
    ) -> Tensor:
        """Return what queries read of the states behind them; write those behind the chunks."""
        ...

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return each head of x, normalised, weighted, and times the silu of its gate."""
        ...

    def cap_logits(self, logits: Tensor, cap: float) -> None:
        """Bend logits into -cap .. cap, in place."""
        ...

    def rotary_store(
        self,
        qkv: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        layer: KVLayer,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Normalise and rotate queries and keys, write keys and values; return the queries."""
        ...

    def mask_logits(self, logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
        """Leave some rows of logits only the tokens of their bitmasks, in place."""
        ...

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
        """Choose a token for each row of logits, [num_rows] int64; -1 where there is no choice.

        Without `filtered` no row that draws has a top_k, top_p or min_p, and a backend may leave
        out what only these need. It decides no token.
        """
        ...

    def count_tokens(
        self, token_ids: Tensor, counts: Tensor, num_ids: Tensor, places: Tensor, tokens: Tensor
    ) -> None:
        """Count one more of each of `tokens` in the line of a table that `places` says."""
        ...

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
        """Lower, or raise, the logits of the tokens in a table, in place."""
        ...

    def token_logprobs(
        self, logits: Tensor, rows: Tensor, ids: Tensor, num_top: int
    ) -> TokenLogprobs:
        """Return how likely tokens are by their rows of logits, with the likeliest of each."""
        ...

    def copy_blocks(self, kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
        """Copy blocks within one KV memory."""
        ...

    def swap_blocks(
        self, src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor
    ) -> None:
        """Copy blocks of one KV memory to another."""
        ...

    def quantize_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's numbers as int8 codes, and a scale for each row."""
        ...

    def split_blocks(self, blocks: Tensor, kind: str) -> PackedWeight:
        """Return the matrix in rows of GGUF's blocks as codes and scales."""
        ...

    def unpack_codes(self, words: Tensor, num_bits: int, order: tuple[int, ...]) -> Tensor:
        """Return the codes of few bits in 32-bit words, as signed numbers."""
        ...

    def unpack_pairs(
        self, pairs: Tensor, table: Tensor, scales: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return `table[code] * scale` for the two codes in each byte, in `dtype`."""
        ...

    def dequantize(self, weight: PackedWeight, dtype: torch.dtype) -> Tensor:
        """Return the matrix [out_features, in_features] in `dtype`."""
        ...
