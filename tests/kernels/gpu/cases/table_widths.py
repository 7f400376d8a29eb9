"""Block tables of widths that 16 divides, and of others: no launch is compiled for them."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, PrefillInputs, Softmax
from pagedrun.kernels.gpu.attention.decode_attention import decode_single_pass, decode_split
from pagedrun.kernels.gpu.attention.prefill_attention import prefill_attention
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_attention
from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork
from tests.kernels.gpu.ahead_of_time import Case

SOFTMAX = Softmax(0.1)
NUMBERS = torch.zeros(2, dtype=torch.int32)


def launch(attend: Callable[[Tensor, KVLayer, Tensor], object]) -> None:
    q = torch.ones(2, 8, 64, dtype=torch.bfloat16)
    cache = torch.ones(3, 2, 64, 64, dtype=torch.bfloat16)
    for width in (1, 32, 33):
        attend(q, KVLayer(cache, cache), torch.zeros(2, width, dtype=torch.int32))


def decode(q: Tensor, layer: KVLayer, tables: Tensor) -> None:
    for form in (decode_single_pass, decode_split):
        form(q, layer, tables, DecodeInputs(NUMBERS, NUMBERS), SOFTMAX, None)


def prefix(q: Tensor, layer: KVLayer, tables: Tensor) -> None:
    work = PrefixWork.allocate(
        max_items=16, max_entries=16, max_rows=16, max_slots=16, tile_rows=16, device=q.device
    )
    prefix_attention(q, layer, tables, work, SOFTMAX)


def prefill(q: Tensor, layer: KVLayer, tables: Tensor) -> None:
    chunks = PrefillInputs(NUMBERS, NUMBERS[:1], NUMBERS[:1])
    prefill_attention(q, layer, tables, chunks, SOFTMAX, None)


CASES = [
    Case(f"widths-{each.__name__}", functools.partial(launch, each), ("sm_90",), "any", True)
    for each in (decode, prefix, prefill)
]
