"""Decode attention: one query a row over its own context, paged and dense."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from pagedrun.paged.bench.kernels.dense_attention import dense_decode
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint
from pagedrun.paged.bench.kernels.roof import Work

CONTIGUOUS = "contiguous"
# What the backends call them: one program reads a whole context, or several read a part each.
FORMS = {"paged v1": "decode_single_pass", "paged v2": "decode_split"}


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """`batch` rows with `context` tokens each."""

    context: int
    batch: int

    @property
    def place(self) -> dict[str, int]:
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

    def build(self, contexts: KernelContexts, kernels: ModuleType) -> KernelPoint:
        """Return the point with its data."""
        shape = contexts.shape
        made = contexts.make(self.batch, self.context, num_queries=self.batch)
        elements = shape.kv_elements(self.batch * self.context) + shape.query_elements(self.batch)
        work = Work(
            elements * contexts.dtype.itemsize,
            shape.attention_flops(self.batch * self.context),
        )
        arguments = (
            made.q,
            made.key_cache,
            made.value_cache,
            made.block_tables,
            torch.arange(self.batch, dtype=torch.int32, device=contexts.device),
            contexts.int32(*[self.context] * self.batch),
            shape.scale,
            None,
        )
        forms = decode_forms(kernels)
        calls = [KernelCall(CONTIGUOUS, dense_decode(made.q, *made.dense(self.context)), work)]
        calls += [KernelCall(name, partial(op, *arguments), work) for name, op in forms.items()]
        ratios = {f"{name} over contiguous": (name, CONTIGUOUS) for name in forms}
        if len(forms) > 1:
            single, split = FORMS
            ratios["v1 over v2"] = (single, split)
        return KernelPoint(self.place, calls, ratios=ratios)


def decode_forms(kernels: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the forms of decode attention that a backend has: both of `FORMS`, or its one."""
    # The package calls its op like the module that the op is in, and so hides that.
    module = sys.modules[kernels.decode_attention.__module__]
    forms = {name: getattr(module, op) for name, op in FORMS.items() if hasattr(module, op)}
    return forms or {"paged": kernels.decode_attention}
