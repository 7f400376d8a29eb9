"""Layers with a window never look at what a table names behind it: those blocks are another's."""

from collections.abc import Callable
from typing import Any

import torch

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    DecodeInputs,
    KVLayer,
    KVScales,
    PrefillInputs,
    Softmax,
)
from pagedrun.kernels.reference.kv_cache import quantize
from tests.support.every_pair import every_pair

LENGTHS = [300, 77, 131]


@every_pair(
    in_turn="window",
    formats=[(torch.float32, None), (torch.bfloat16, None), (torch.float32, torch.float8_e4m3fn)],
    window=[1, 50, 131],
    block_size=[5, 16],
)
def test_what_a_gap_names_changes_no_bit(
    twin: Any,
    formats: tuple[torch.dtype, torch.dtype | None],
    window: int,
    block_size: int,
    make_context: Callable[..., Any],
) -> None:
    """The last 20 tokens of each row as a chunk of its prompt, then its last one as an answer's."""
    dtype, codes = formats
    torch.manual_seed(0)
    context = make_context(LENGTHS, num_kv_heads=2, head_dim=16, block_size=block_size, dtype=dtype)
    firsts = [length - 20 for length in LENGTHS]
    with_gaps = context.block_tables.clone()
    unused = context.block_tables[1, -1]  # behind a short row's blocks: nothing but NaN
    for table, first in zip(with_gaps, firsts, strict=True):
        table[: max(first - window + 1, 0) // block_size] = unused
    assert not torch.equal(with_gaps, context.block_tables)
    q = torch.randn(60, 4, 16).to(dtype).to(twin.device)
    keys, values, scales = context.key_cache, context.value_cache, None
    if codes is not None:  # NaN has codes of 0, and a scale of NaN
        keys, key_scales = quantize(keys, codes)
        values, value_scales = quantize(values, codes)
        scales = KVScales(key_scales.to(twin.device), value_scales.to(twin.device))
    layer = KVLayer(keys.to(twin.device), values.to(twin.device), scales)

    def attend(tables: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.arange(3, dtype=torch.int32)
        starts = torch.tensor([0, 20, 40, 60], dtype=torch.int32)
        prefill = PrefillInputs(starts, rows, torch.tensor(firsts, dtype=torch.int32))
        decode = DecodeInputs(rows, torch.tensor(LENGTHS, dtype=torch.int32))
        inputs = AttentionInputs(tables, 60, prefill, decode).placed(lambda t: t.to(twin.device))
        attention = twin.ops.prepare(inputs, AttentionShape(4, 2, 16, dtype, codes or dtype))
        return [
            attention.prefill(q, layer, Softmax(0.25), window),
            attention.decode(q[:3], layer, Softmax(0.25), window),
        ]

    for got, expected in zip(attend(with_gaps), attend(context.block_tables), strict=True):
        assert expected.isfinite().all()
        assert torch.equal(got, expected)
