import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, KVScales, PrefillInputs, Softmax
from pagedrun.kernels.reference import attention as reference
from pagedrun.kernels.reference.kv_cache import quantize


def attend(q: Tensor, keys: Tensor, values: Tensor, scales: KVScales | None) -> Tensor:
    num_tokens, num_queries = keys.shape[2], len(q)
    ints = [[0, num_queries], [0], [num_tokens - num_queries]]
    starts, tables, firsts = (torch.tensor(each, dtype=torch.int32) for each in ints)
    chunks = PrefillInputs(starts, tables, firsts)
    table = torch.zeros(1, 1, dtype=torch.int32)
    layer = KVLayer(keys, values, scales)
    return reference.prefill_attention(q, layer, table, chunks, Softmax(q.shape[2] ** -0.5), None)


# Half as much again as what was measured: benchmarks/results/2026-11-21-kv-quantization.md.
@pytest.mark.parametrize(
    ("codes", "outlier", "most"),
    [
        (torch.int8, 1, 0.014),
        (torch.int8, 8, 0.036),
        (torch.float8_e4m3fn, 1, 0.055),
        (torch.float8_e4m3fn, 8, 0.071),
    ],
)
def test_attention_over_codes_stays_near(codes: torch.dtype, outlier: int, most: float) -> None:
    torch.manual_seed(0)
    q = torch.randn(64, 4, 128, dtype=torch.float64)
    keys, values = torch.randn(2, 1, 2, 1024, 128, dtype=torch.float64)
    if outlier > 1:  # as in trained models: the same few channels of every key, far from zero
        keys[..., ::32] = (keys[..., ::32] / 4 + torch.tensor([1.0, -1.0, 1.0, -1.0])) * outlier
    key_codes, key_scales = quantize(keys, codes)
    value_codes, value_scales = quantize(values, codes)
    exact = attend(q, keys, values, None)
    moved = attend(q, key_codes, value_codes, KVScales(key_scales, value_scales))
    error = ((moved - exact).square().mean() / exact.square().mean()).sqrt().item()
    assert most / 6 < error < most
