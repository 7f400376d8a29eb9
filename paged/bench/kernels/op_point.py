"""The other ops of a layer, and sampling, beside what plain torch does with the same data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels import reference
from pagedrun.kernels.backend import Backend
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint, Place
from pagedrun.paged.bench.kernels.roofline import Work

OURS, TORCH = "pagedrun", "torch"
EPS = 1e-6
# Logits as of a language model: a few tokens stand out.
LOGITS_STD, NUM_LIKELY, LIKELIER = 3.0, 100, 12.0
DRAWS = {"greedy": (0.0, 1.0), "temperature 1": (1.0, 1.0), "top-p 0.9": (1.0, 0.9)}

_Build = Callable[["OpPoint", KernelContexts, Backend], KernelPoint]


@dataclass(frozen=True, slots=True)
class OpPoint:
    """The op `op`, a key of `BUILDERS`, on `rows` tokens."""

    op: str
    rows: int

    @property
    def place(self) -> Place:
        """The op and its size, as a result states them."""
        return {"op": self.op, "rows": self.rows}

    @property
    def work(self) -> float:
        """What its time is about proportional to."""
        return 1.0  # none takes long

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return about the memory that it takes."""
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
        point.place,
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
    """Beside the usual sort and cumulative sum; what is drawn must be what the reference draws."""
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
    truth = partial(reference.sample, *arguments)
    return _point(point, plain, partial(kernels.sample, *arguments), work, truth)


BUILDERS: dict[str, _Build] = {
    "PackedLinear": _linear,
    "add_rms_norm": _add_rms_norm,
    "silu_mul": _silu_mul,
    **{f"sample, {name}": partial(_sample, *draw) for name, draw in DRAWS.items()},
}
