"""Operations of a model step, and the linear layers that a backend packs.

`Backend` lists the operations once and defines the result of each in plain PyTorch: short ones
here, long ones in `pagedrun.kernels.reference`. The backends of a CPU and a GPU override them with
faster versions. Arithmetic is float32 for narrower inputs and float64 for float64 inputs, so the
same code is the oracle of the tests.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.attention import Attention, AttentionShape, HostAttention
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.quantized_form import Activations, CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.kernels.reference import (
    attention,
    experts,
    kv_cache,
    linear,
    logits,
    norms,
    recurrence,
    sampling,
    weights,
)

Result = TypeVar("Result")


class GroupedLinear(Protocol):
    """`y = x @ weight[e].T + bias[e]`, where each row x has an expert e; or without biases."""

    @property
    def num_experts(self) -> int:
        """Number of weights."""
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
        """True if the bytes of a row of y do not depend on other rows of the same expert."""
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
        """True if the weight is a copy in a layout of the backend."""
        ...

    @property
    def row_invariant(self) -> bool:
        """True if the bytes of a row of y do not depend on the number of rows."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        ...


class RecordedStep(Protocol[Result]):
    """Step of a model, computed once while its calls were noted.

    result: overwritten by each replay. can_replay: False if values decide the calls.
    """

    result: Result
    can_replay: bool

    def replay(self) -> Result:
        """Compute the step with the present contents of its inputs; return `result`."""
        ...


class Backend:
    """Operations of a model step in plain PyTorch, on any device: the definition of correct.

    Subclasses override operations with faster ones of the same signature. Layout of the KV memory
    of one layer: `key_cache, value_cache [num_blocks, num_kv_heads, block_size, head_dim]`. Slot
    `block_id * block_size + offset` holds one token. The content of a slot before its token is
    written is undefined, and may be NaN.

    name: the kernels that stored prefixes name as their origin. code_kernels: kernels for quantized
    weights. activations: inputs of the layers that these compute. records: whether steps can be
    recorded and replayed; see `record`. LAYER_PARTS: classes that packed layers consist of, see
    `stored_layers`. OPS: names of all operations, in reading order. PACKS: names of the methods
    that pack weights into layers.
    """

    name: str = "pagedrun.kernels.reference"
    code_kernels: CodeKernels = CodeKernels.NONE
    activations: Activations = Activations.EXACT
    records: bool = False
    LAYER_PARTS: ClassVar[tuple[type, ...]] = (
        *(linear.PackedLinear, linear.Int8Linear, experts.PackedGroupedLinear),
    )
    OPS: ClassVar[tuple[str, ...]]
    PACKS: ClassVar[tuple[str, ...]] = (
        "pack_linear",
        "pack_int8",
        "pack_quantized",
        "pack_grouped_linear",
        "pack_quantized_experts",
    )

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        """Return the attention of a step over `inputs`, whose tensors are on the device.

        Called once a step, for all of its layers. `room` is for a step that is captured and
        replayed with other groups (see `Attention.regroup`): the partitions that all rows together
        may share.
        """
        return HostAttention.of(inputs, attention)

    def record(self, step: Callable[[], Result]) -> RecordedStep[Result]:
        """Compute a step and return it as it can be replayed; only if the backend `records`.

        Host code of the step must not read values that differ between replays.
        """
        raise NotImplementedError(f"{self.name} records no steps")

    def call_on_host(self, function: Callable[[], None]) -> None:
        """Call a function now, and in a step that is recorded at each replay."""
        function()

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> Linear:
        """Return `y = x @ weight.T + bias`, in the fastest form of this backend.

        weight: [out_features, in_features]. bias: [out_features], same dtype, or None.
        `row_invariant` asks for rows whose bytes do not depend on the number of rows.
        """
        return linear.PackedLinear(weight, bias)

    def pack_int8(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, shifts: bool = False
    ) -> Linear:
        """Return `y = x @ (codes * scales).T + bias`, the rows of x quantized to int8 as well.

        codes: [out_features, in_features] int8. scales: [out_features] float32. bias:
        [out_features] in the dtype of x, or None. shifts: rows have a number that means zero.
        A row of y has the same bytes on every backend.
        """
        return linear.Int8Linear(codes, scales, bias, shifts=shifts)

    def pack_quantized(
        self,
        weight: PackedWeight,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        *,
        row_invariant: bool = False,
    ) -> Linear:
        """Return `y = x @ weight.T + bias` for x in `dtype` and a quantized weight.

        The numbers multiplied are those of `dequantize`, with inputs in int8 those of
        `reference.quantized`. A weight without a kernel in `code_kernels` is kept in `dtype`. Other
        arguments as for `pack_linear`.
        """
        return self.pack_linear(self.dequantize(weight, dtype), bias, row_invariant=row_invariant)

    def pack_grouped_linear(
        self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None
    ) -> GroupedLinear:
        """Return the linear layers of many experts; their rows are invariant where this matters.

        weights: parts whose outputs lie side by side, each with a matrix [out_features,
        in_features] for each expert; all of one shape and dtype. bias: [num_experts, out_features
        of all parts], the same dtype, or None.
        """
        return experts.PackedGroupedLinear(weights, bias)

    def pack_quantized_experts(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        dtype: torch.dtype,
        bias: Tensor | None = None,
    ) -> GroupedLinear:
        """Return the linear layers of many experts, quantized where there are kernels for it.

        weights: parts as for `pack_grouped_linear`, all of one form.
        """
        plain = [[self.dequantize(each, dtype) for each in part] for part in weights]
        return self.pack_grouped_linear(plain, bias)

    route = staticmethod(experts.route)

    @staticmethod
    def combine_experts(
        outputs: Tensor,
        rows: Tensor,
        weights: Tensor,
        shared: Tensor | None = None,
        shared_gate: Tensor | None = None,
    ) -> Tensor:
        """Return each token's weighted sum, in float32 and in order of rank, rounded once.

        outputs: [num_rows, size], results of experts. rows, weights: [num_tokens, num_chosen],
        int64 and float32, a token's rows of `outputs` by rank and their factors. shared:
        [num_tokens, size], result of the expert that all tokens pass; it is added last, times
        `sigmoid(shared_gate)` ([num_tokens, 1]; None: times 1). Returns [num_tokens, size] in the
        dtype of outputs.
        """
        wide = torch.promote_types(outputs.dtype, torch.float32)
        total = torch.zeros(len(rows), outputs.shape[1], dtype=wide, device=outputs.device)
        for rank in range(rows.shape[1]):
            total += weights[:, rank, None] * outputs[rows[:, rank]].to(wide)
        if shared is not None:
            factor = 1.0 if shared_gate is None else shared_gate.to(wide).sigmoid()
            total += factor * shared.to(wide)
        return total.to(outputs.dtype)

    rms_norm = staticmethod(norms.rms_norm)
    add_rms_norm = staticmethod(norms.add_rms_norm)
    gated_rms_norm = staticmethod(norms.gated_rms_norm)
    layer_norm = staticmethod(norms.layer_norm)
    add_layer_norm = staticmethod(norms.add_layer_norm)

    @staticmethod
    def silu_mul(gate_up: Tensor) -> Tensor:
        """Return `silu(gate) * up`, where `gate_up` holds gate and up side by side.

        gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
        same dtype, rounded once. `silu(x) = x / (1 + exp(-x))`.
        """
        gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)

    @staticmethod
    def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
        """Return `gelu(gate) * up`, where `gate_up` holds gate and up side by side.

        gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
        same dtype, rounded once. gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))).
        Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.
        """
        gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
        return (functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

    @staticmethod
    def gelu(x: Tensor) -> Tensor:
        """Return `x / 2 * (1 + erf(x / sqrt(2)))`, float32 inside, rounded once.

        Returns the shape and dtype of x, [num_tokens, intermediate_size].
        """
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return functional.gelu(wide).to(x.dtype)

    @staticmethod
    def gelu_tanh(x: Tensor) -> Tensor:
        """Return gelu by tanh, as in `gelu_tanh_mul`, float32 inside, rounded once.

        Returns the shape and dtype of x, [num_tokens, intermediate_size].
        """
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return functional.gelu(wide, approximate="tanh").to(x.dtype)

    def gelu_mlp(self, up: Linear, down: Linear, x: Tensor) -> Tensor:
        """Return `down(gelu(up(x)))`, the bytes of these three operations."""
        return down(self.gelu(up(x)))

    @staticmethod
    def gelu_mul(gate_up: Tensor) -> Tensor:
        """Return `gelu(gate) * up` by the error function, with gate and up side by side.

        gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
        same dtype, rounded once.
        """
        gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
        return (functional.gelu(gate) * up).to(gate_up.dtype)

    @staticmethod
    def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
        """Return `(up + 1) * gate * sigmoid(alpha * gate)` of clipped gate and up side by side.

        gate_up: [num_tokens, 2 * intermediate_size]. A gate is at most `limit`, an up is within
        -limit .. limit; a NaN stays. Returns [num_tokens, intermediate_size] in the same dtype,
        rounded once.
        """
        gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)

    @staticmethod
    def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
        """Return `x * sigmoid(gate)`, float32 inside, rounded once.

        x, gate: [num_tokens, size]. Returns the shape and dtype of x.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) * gate.to(wide).sigmoid()).to(x.dtype)

    causal_conv = staticmethod(recurrence.causal_conv)
    gated_delta_rule = staticmethod(recurrence.gated_delta_rule)

    rotary_store = staticmethod(kv_cache.rotary_store)

    @staticmethod
    def copy_blocks(kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
        """Copy blocks `src_ids` over blocks `dst_ids`, in every layer, keys and values.

        kv_cache: [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim], written in place.
        src_ids, dst_ids: [num_copies] int64 on the cache's device. No block may be written twice,
        nor be both read and written.
        """
        kv_cache[:, :, dst_ids] = kv_cache[:, :, src_ids]

    @staticmethod
    def swap_blocks(src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
        """Copy blocks `src_ids` of one KV memory over blocks `dst_ids` of another.

        src_cache, dst_cache: [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]; only
        `num_blocks` and the device may differ. src_ids, dst_ids: [num_copies] int64; `dst_ids`
        names no block twice. The bytes arrive unchanged.
        """
        moved = src_cache[:, :, src_ids.to(src_cache.device)]
        dst_cache[:, :, dst_ids.to(dst_cache.device)] = moved.to(dst_cache.device)

    @staticmethod
    def cap_logits(logits: Tensor, cap: float) -> None:
        """Cap logits to -cap .. cap, in place: `cap * tanh(logits / cap)`, rounded once.

        logits: [num_rows, vocab_size], any float dtype.
        Source: Gemma Team 2024, "Gemma 2", arXiv:2408.00118, section 2.
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logits.copy_(cap * torch.tanh(wide / cap))

    @staticmethod
    def mask_logits(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
        """Write -inf where a row's bitmask does not allow a token; nothing else is written.

        logits: [num_rows, vocab_size], contiguous. rows: [num_masked] int64, the rows that have a
        bitmask, each at most once. bitmask: [num_masked, ceil(vocab_size / 32)] int32: bit i of
        word w allows token 32 w + i. Bits past the vocabulary are ignored.
        """
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = (bitmask.unsqueeze(2) >> bits & 1).flatten(1)[:, : logits.shape[1]] == 1
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)

    count_tokens = staticmethod(logits.count_tokens)
    penalize = staticmethod(logits.penalize)
    sample = staticmethod(sampling.sample)
    token_logprobs = staticmethod(logits.token_logprobs)

    quantize_rows = staticmethod(linear.quantize_rows)
    split_blocks = staticmethod(weights.split_blocks)

    @staticmethod
    def unpack_codes(
        words: Tensor, num_bits: int, order: tuple[int, ...], *, transposed: bool = False
    ) -> Tensor:
        """Return the codes in `words`, each less 2^(num_bits - 1), so that they are signed.

        words: [num_rows, num_words] int32. num_bits: of a code, 2, 4 or 8. order: [32 / num_bits];
        the code in the bits from i * num_bits on is element order[i] of its word's.
        Returns [num_rows, num_words * 32 / num_bits] int8, or its transpose.
        """
        shifts = torch.arange(0, 32, num_bits, dtype=torch.int32, device=words.device)
        fields = (words.unsqueeze(-1) >> shifts) & ((1 << num_bits) - 1)
        positions = torch.tensor(order, device=words.device).argsort()
        codes = (fields[..., positions] - (1 << (num_bits - 1))).to(torch.int8).flatten(1)
        return codes.T.contiguous() if transposed else codes

    @staticmethod
    def unpack_pairs(pairs: Tensor, table: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """Return `table[code] * scale` of the two codes in each byte, rounded once from float32.

        pairs: [num_rows, num_bytes] uint8, of each byte the low half is the first code. table: [16]
        float32. scales: [num_rows, num_groups] float32, each for as many neighboring codes of its
        row. Returns [num_rows, 2 * num_bytes] in `dtype`.
        """
        codes = torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1).long()
        grouped = torch.unflatten(table[codes], 1, (scales.shape[1], -1))
        return (grouped * scales[:, :, None]).flatten(1).to(dtype)

    @staticmethod
    def dequantize(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
        """Return `(code - zero) * scale - minimum`, computed in float32 and rounded once.

        Returns [out_features, in_features] in `dtype`.
        """
        whole, groups = weight.with_numbers().by_row(), weight.groups()
        numbers = whole.codes[:].float()
        if whole.zeros is not None:
            numbers -= whole.zeros.float()[:, groups]
        numbers *= whole.scales.to_float32()[:, groups]
        if whole.minima is not None:
            numbers -= whole.minima.to_float32()[:, groups]
        return numbers.to(dtype)


Backend.OPS = tuple(name for name, op in vars(Backend).items() if isinstance(op, staticmethod))
