"""Inputs of attention kernels: chunks of prompts, layers on a device, layers in float64."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, KVScales, PrefillInputs

Chunk = tuple[int, int, int]  # row of the block tables, position of the first token, tokens
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def as_int32(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


def prefill_inputs(chunks: Sequence[Chunk]) -> PrefillInputs:
    tables, firsts, sizes = zip(*chunks, strict=True)
    starts = as_int32([0, *accumulate(sizes)])
    return PrefillInputs(starts, as_int32(tables), as_int32(firsts))


def on_device(layer: KVLayer, device: torch.device) -> KVLayer:
    scales = layer.scales
    if scales is not None:
        scales = KVScales(scales.keys.to(device), scales.values.to(device))
    return KVLayer(layer.keys.to(device), layer.values.to(device), scales)


def in_float64(layer: KVLayer) -> KVLayer:
    """Return the numbers of a layer, those of codes times their scales."""
    keys, values = layer.keys.double(), layer.values.double()
    if layer.scales is None:
        return KVLayer(keys, values)
    scales = (each.double()[..., None] for each in (layer.scales.keys, layer.scales.values))
    return KVLayer(keys * next(scales), values * next(scales))


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Compare a GPU's result with the float64 one."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max().item()
    assert error <= TOLERANCE[actual.dtype] * max(1.0, expected.abs().max().item())
