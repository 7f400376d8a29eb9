"""Prefill attention: a chunk of a prompt over itself and what comes before it."""

from dataclasses import dataclass
from functools import partial

from pagedrun.kernels.attention.attention_inputs import AttentionInputs, PrefillInputs
from pagedrun.kernels.backend import Backend
from pagedrun.paged.bench.kernels.decode_point import CONTIGUOUS
from pagedrun.paged.bench.kernels.dense_attention import dense_prefill
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint, Place
from pagedrun.paged.bench.kernels.roofline import Work

PAGED = "paged"


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """`chunk` tokens after `before` others of the same prompt."""

    chunk: int
    before: int

    @property
    def place(self) -> Place:
        """The sizes, as a result states them."""
        return {"chunk": self.chunk, "before": self.before}

    @property
    def work(self) -> float:
        """What its time is about proportional to: pairs of a token and one that it sees."""
        return float(self._num_pairs)

    def num_bytes(self, contexts: KernelContexts) -> int:
        """Return the memory that it takes: blocks, the same densely, queries, answers, a mask."""
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
            self.place,
            [
                KernelCall(CONTIGUOUS, dense_prefill(made.q, *made.dense(length)), work),
                KernelCall(PAGED, paged, work),
            ],
            ratios={"paged over contiguous": (PAGED, CONTIGUOUS)},
        )

    @property
    def _num_pairs(self) -> int:
        return self.chunk * self.before + self.chunk * (self.chunk + 1) // 2
