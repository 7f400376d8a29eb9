"""Decode attention: one query a row over its own context, paged and dense."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention_inputs import AttentionInputs, DecodeInputs
from pagedrun.kernels.backend import Backend
from pagedrun.paged.bench.kernels.dense_attention import dense_decode
from pagedrun.paged.bench.kernels.kernel_context import KernelContext, KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint, Place
from pagedrun.paged.bench.kernels.roofline import Work

CONTIGUOUS = "contiguous"
# On a GPU: one program reads a whole context, or several read a part each.
FORMS = ("paged v1", "paged v2")


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """`batch` rows with `context` tokens each."""

    context: int
    batch: int

    @property
    def place(self) -> Place:
        """The sizes, as a result states them."""
        return {"context": self.context, "batch": self.batch}

    @property
    def work(self) -> float:
        """What its time is about proportional to."""
        return float(self.batch * self.context)

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory that it takes: the blocks, and the same densely."""
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
        return KernelPoint(self.place, calls, ratios=ratios)

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
