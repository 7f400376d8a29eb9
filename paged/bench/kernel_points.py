"""Points of the kernel benchmark: decode, shared prefix, prefill and other operations.

A point is one size of one operation, with all of its implementations: the paged kernels, and torch
on a dense copy of the data. Its data is made just before it is measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    DecodeInputs,
    PrefillInputs,
    PrefixGroups,
)
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.bench.kernel_context import KernelContext, KernelContexts
from pagedrun.paged.bench.kernel_timing import KernelCall, KernelPoint, PointSizes, Work

CONTIGUOUS = "contiguous"
# On a GPU: one program reads a whole context, or several read parts of it.
FORMS = ("paged v1", "paged v2")


@dataclass(frozen=True, slots=True)
class Point(ABC):
    """One size of an operation, its fields; its data is made just before it is measured."""

    @property
    def sizes(self) -> PointSizes:
        """The sizes, as a result states them."""
        return cast("PointSizes", asdict(self))

    @property
    @abstractmethod
    def work(self) -> float:
        """Cost relative to other points of the same kind."""

    @abstractmethod
    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory of the point."""

    @abstractmethod
    def build(self, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
        """Return the point with its data."""


@dataclass(frozen=True, slots=True)
class DecodePoint(Point):
    """`batch` rows with `context` tokens each."""

    context: int
    batch: int

    @property
    def work(self) -> float:
        """Estimate of the relative cost."""
        return float(self.batch * self.context)

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory of the blocks, and of a dense copy."""
        dense = contexts.shape.kv_elements(self.batch * self.context) * contexts.dtype.itemsize
        return contexts.context_bytes(self.batch, self.context) + dense

    def build(self, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
        """Return the point with its data."""
        shape = contexts.shape
        made = contexts.make(self.batch, self.context, num_queries=self.batch)
        elements = shape.kv_elements(self.batch * self.context) + shape.query_elements(self.batch)
        work = Work(
            elements * contexts.dtype.itemsize,
            shape.attention_flops(self.batch * self.context),
        )
        forms = decode_forms(made, self._rows(contexts), contexts, kernels)
        calls = [KernelCall(CONTIGUOUS, dense_decode(made.q, *made.dense(self.context)), work)]
        calls += [KernelCall(name, form, work) for name, form in forms.items()]
        ratios = {f"{name} over contiguous": (name, CONTIGUOUS) for name in forms}
        if len(forms) > 1:
            single, split = FORMS
            ratios["v1 over v2"] = (single, split)
        return KernelPoint(self.sizes, calls, ratios=ratios)

    def _rows(self, contexts: KernelContexts) -> DecodeInputs:
        return DecodeInputs(
            torch.arange(self.batch, dtype=torch.int32, device=contexts.device),
            contexts.int32(*[self.context] * self.batch),
        )


def decode_forms(
    made: KernelContext, rows: DecodeInputs, contexts: KernelContexts, kernels: Backend
) -> dict[str, Callable[[], Tensor]]:
    """Return the forms of decode attention that a backend has: both of `FORMS`, or its one."""
    softmax = contexts.shape.softmax
    if kernels.name != "pagedrun.kernels.gpu":
        inputs = AttentionInputs(made.block_tables, decode=rows)
        attention = kernels.prepare(inputs, contexts.attention_shape)
        return {"paged": partial(attention.decode, made.q, made.layer, softmax)}
    from pagedrun.kernels.gpu.attention import decode_attention  # Triton is not everywhere

    ops = (decode_attention.decode_single_pass, decode_attention.decode_split)
    read = (made.q, made.layer, made.block_tables, rows)
    return {name: partial(op, *read, softmax, None) for name, op in zip(FORMS, ops, strict=True)}


ONCE, REREAD = "read once", "re-read"
OWN_TOKENS = 64  # behind the prefix


@dataclass(frozen=True, slots=True)
class PrefixPoint(Point):
    """`group` rows that share `prefix` tokens, whole partitions and whole blocks."""

    prefix: int
    group: int

    @property
    def work(self) -> float:
        """Estimate of the relative cost: bytes read."""
        return float(self.group * (self.prefix + OWN_TOKENS))

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory of the blocks, and of the rows' states."""
        states = 4 * contexts.shape.query_elements(self.group)
        return contexts.context_bytes(self.group, OWN_TOKENS, self.prefix) + states

    def build(self, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
        """Return the point with its data."""
        made = contexts.make(
            self.group, OWN_TOKENS, shared_tokens=self.prefix, num_queries=self.group
        )
        rows = torch.arange(self.group, dtype=torch.int32, device=contexts.device)
        lengths = contexts.int32(*[self.prefix + OWN_TOKENS] * self.group)
        decode = DecodeInputs(rows, lengths, _one_group(self))
        inputs = AttentionInputs(made.block_tables, decode=decode)
        attention = kernels.prepare(inputs, contexts.attention_shape)
        q, layer, softmax = made.q, made.layer, contexts.shape.softmax

        def once() -> Tensor:
            prefix = attention.prefix(q, layer, softmax)
            return attention.decode(q, layer, softmax, None, prefix)

        def reread() -> Tensor:
            return attention.decode(q, layer, softmax)

        own = self.group * OWN_TOKENS
        return KernelPoint(
            self.sizes,
            [
                KernelCall(REREAD, reread, self._work(contexts, self.group * self.prefix + own)),
                KernelCall(ONCE, once, self._work(contexts, self.prefix + own)),
            ],
            ratios={"re-read over once": (REREAD, ONCE)},
        )

    def _work(self, contexts: KernelContexts, tokens_read: int) -> Work:
        shape = contexts.shape
        elements = shape.kv_elements(tokens_read) + shape.query_elements(self.group)
        flops = shape.attention_flops(self.group * (self.prefix + OWN_TOKENS))
        return Work(elements * contexts.dtype.itemsize, flops)


def _one_group(point: PrefixPoint) -> PrefixGroups:
    """Return all rows as one group, decided on the host."""
    num_partitions = point.prefix // PARTITION_TOKENS
    return PrefixGroups(
        rows=torch.arange(point.group, dtype=torch.int32),
        row_starts=torch.tensor([0, point.group], dtype=torch.int32),
        table_rows=torch.zeros(1, dtype=torch.int32),
        first_partitions=torch.zeros(1, dtype=torch.int32),
        last_partitions=torch.full((1,), num_partitions, dtype=torch.int32),
        num_partitions=torch.full((point.group,), num_partitions, dtype=torch.int32),
    )


PAGED = "paged"


@dataclass(frozen=True, slots=True)
class PrefillPoint(Point):
    """`chunk` tokens after `before` others of the same prompt."""

    chunk: int
    before: int

    @property
    def work(self) -> float:
        """Estimate of the relative cost: pairs of a query and a visible key."""
        return float(self._num_pairs)

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory of blocks, a dense copy, queries, answers and a mask."""
        shape, length = contexts.shape, self.before + self.chunk
        elements = shape.kv_elements(length) + 4 * shape.query_elements(self.chunk)
        mask = self.chunk * length
        return contexts.context_bytes(1, length) + elements * contexts.dtype.itemsize + mask

    def build(self, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
        """Return the point with its data."""
        shape, length = contexts.shape, self.before + self.chunk
        made = contexts.make(1, length, num_queries=self.chunk)
        elements = shape.kv_elements(length) + shape.query_elements(self.chunk)
        work = Work(elements * contexts.dtype.itemsize, shape.attention_flops(self._num_pairs))
        chunks = PrefillInputs(
            contexts.int32(0, self.chunk), contexts.int32(0), contexts.int32(self.before)
        )
        inputs = AttentionInputs(made.block_tables, self.chunk, prefill=chunks)
        attention = kernels.prepare(inputs, contexts.attention_shape)
        paged = partial(attention.prefill, made.q, made.layer, shape.softmax)
        return KernelPoint(
            self.sizes,
            [
                KernelCall(CONTIGUOUS, dense_prefill(made.q, *made.dense(length)), work),
                KernelCall(PAGED, paged, work),
            ],
            ratios={"paged over contiguous": (PAGED, CONTIGUOUS)},
        )

    @property
    def _num_pairs(self) -> int:
        return self.chunk * self.before + self.chunk * (self.chunk + 1) // 2


OURS, TORCH = "pagedrun", "torch"
EPS = 1e-6
# Logits as of a language model: a few tokens stand out.
LOGITS_STD, NUM_LIKELY, LIKELIER = 3.0, 100, 12.0
DRAWS = {"greedy": (0.0, 1.0), "temperature 1": (1.0, 1.0), "top-p 0.9": (1.0, 0.9)}

_Build = Callable[["OpPoint", KernelContexts, Backend], KernelPoint]


@dataclass(frozen=True, slots=True)
class OpPoint(Point):
    """The op `op`, a key of `BUILDERS`, on `rows` tokens."""

    op: str
    rows: int

    @property
    def work(self) -> float:
        """Estimate of the relative cost."""
        return 1.0  # all are short

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the approximate memory of operands and results."""
        shape = contexts.shape
        widest = max(shape.vocab_size, 4 * shape.intermediate_size)
        weight = 6 * shape.intermediate_size * shape.hidden_size * contexts.dtype.itemsize
        return 32 * self.rows * widest + weight

    def build(self, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
        """Return the point with its data."""
        return BUILDERS[self.op](self, contexts, kernels)


def op_points() -> list[OpPoint]:
    """Return the points that are measured."""
    linear = [OpPoint("PackedLinear", rows) for rows in (1, 16, 64, 256)]
    return [
        *linear,
        OpPoint("add_rms_norm", 64),
        OpPoint("silu_mul", 64),
        *(OpPoint(f"sample, {name}", 8) for name in DRAWS),
    ]


def _point(
    point: OpPoint,
    plain: Callable[[], Tensor],
    ours: Callable[[], Tensor],
    work: Work,
    truth: Callable[[], Tensor] | None = None,
) -> KernelPoint:
    return KernelPoint(
        point.sizes,
        [KernelCall(TORCH, plain, work, truth is None), KernelCall(OURS, ours, work)],
        truth,
        {"torch over pagedrun": (TORCH, OURS)},
    )


def _linear(point: OpPoint, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
    """The layer's widest product: gate and up at once."""
    rows, size = point.rows, contexts.shape.hidden_size
    weight = contexts.random(2 * contexts.shape.intermediate_size, size)
    x = contexts.random(rows, size)
    layer = kernels.pack_linear(weight.clone())
    num_bytes = (weight.numel() + x.numel() + rows * len(weight)) * x.itemsize
    work = Work(num_bytes, 2 * rows * weight.numel())
    return _point(point, partial(functional.linear, x, weight), partial(layer, x), work)


def _add_rms_norm(point: OpPoint, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
    rows, size = point.rows, contexts.shape.hidden_size
    x, weight = contexts.random(rows, size), contexts.random(size)
    ours = torch.zeros(rows, size, device=contexts.device)
    theirs = ours.clone()  # each adds to its own, as often as it is called

    def plain() -> Tensor:
        theirs.add_(x)
        return functional.rms_norm(theirs, (size,), eps=EPS).to(weight.dtype) * weight

    work = Work(2 * x.numel() * (x.itemsize + ours.itemsize), 5 * x.numel())
    return _point(point, plain, partial(kernels.add_rms_norm, x, ours, weight, EPS), work)


def _silu_mul(point: OpPoint, contexts: KernelContexts, kernels: Backend) -> KernelPoint:
    gate_up = contexts.random(point.rows, 2 * contexts.shape.intermediate_size)

    def plain() -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    work = Work(gate_up.numel() * 3 // 2 * gate_up.itemsize, 2 * gate_up.numel())
    return _point(point, plain, partial(kernels.silu_mul, gate_up), work)


def _sample(
    temperature: float,
    top_p: float,
    point: OpPoint,
    contexts: KernelContexts,
    kernels: Backend,
) -> KernelPoint:
    """Sampling, against a sort and a cumulative sum; draws must equal the reference's."""
    rows, device = point.rows, contexts.device
    size = (rows, contexts.shape.vocab_size)
    logits = torch.randn(size, generator=contexts.generator, device=device) * LOGITS_STD
    logits[:, :NUM_LIKELY] += LIKELIER
    streams = [torch.arange(rows, device=device) for _ in range(4)]
    arguments = (
        logits,
        torch.full((rows,), temperature, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
        torch.full((rows,), top_p, device=device),
        torch.zeros(rows, device=device),
        *streams,
    )

    def plain() -> Tensor:
        if temperature == 0:
            return logits.argmax(-1)
        probs = logits.softmax(-1)
        if top_p == 1:
            return (probs / torch.empty_like(probs).exponential_()).argmax(-1)
        probs, order = probs.sort(descending=True)
        probs = probs.masked_fill(probs.cumsum(-1) - probs > top_p, 0.0)
        drawn = (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)
        return order.gather(-1, drawn)[:, 0]

    work = Work(logits.nbytes, logits.numel())
    truth = partial(Backend.sample, *arguments)
    return _point(point, plain, partial(kernels.sample, *arguments), work, truth)


BUILDERS: dict[str, _Build] = {
    "PackedLinear": _linear,
    "add_rms_norm": _add_rms_norm,
    "silu_mul": _silu_mul,
    **{f"sample, {name}": partial(_sample, *draw) for name, draw in DRAWS.items()},
}


def dense_decode(q: Tensor, keys: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """Return a call that attends from each row of `q` over all of its own keys.

    q: [num_rows, num_heads, head_dim]. keys, values: [num_rows, num_kv_heads, num_tokens,
    head_dim]. The call returns the shape of `q`.
    """

    def call() -> Tensor:
        with _flash(q):
            attended = functional.scaled_dot_product_attention(
                q.unsqueeze(2), keys, values, enable_gqa=True
            )
        return attended.squeeze(2)

    return call


def dense_prefill(q: Tensor, keys: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """Return a call that attends causally from the last tokens of one row over all before them.

    q: [num_tokens, num_heads, head_dim], the last of the row. keys, values: [1, num_kv_heads,
    num_context_tokens, head_dim]. The call returns the shape of `q`.
    """
    num_tokens, context = len(q), keys.shape[2]
    query = q.transpose(0, 1).unsqueeze(0)
    mask: Tensor | None = None
    if num_tokens < context:  # counted from the last key, not from the first
        mask = causal_lower_right(num_tokens, context)  # a Tensor, whatever its type says
        if q.device.type == "cpu":  # which makes the mask anew in every call
            mask = torch.ones(num_tokens, context, dtype=torch.bool).tril(context - num_tokens)

    def call() -> Tensor:
        with _flash(q):
            attended = functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
        return attended[0].transpose(0, 1)

    return call


@contextmanager
def _flash(q: Tensor) -> Iterator[None]:
    """Use only the flash kernel on a GPU: other kernels are slower."""
    if q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            yield
    else:
        yield
