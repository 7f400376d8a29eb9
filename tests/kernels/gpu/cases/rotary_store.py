"""Heads of common models: whole and partial rotation, with and without norms, quantised or not."""

import functools

import torch

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer, KVScales
from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(
    heads: tuple[int, int, int],
    rotary_dim: int,
    norm: str | None,
    dtype: torch.dtype,
    codes: torch.dtype | None,
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    cache = torch.zeros(2, num_kv_heads, 64, head_dim).to(codes or dtype)
    scales = None if codes is None else KVScales(*torch.ones(2, *cache.shape[:3]))
    weight = torch.ones(head_dim, dtype=dtype)
    norms = None if norm is None else HeadNorms(weight, weight, 1e-6, norm == "after")
    GpuBackend.rotary_store(
        torch.zeros(2, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype),
        torch.zeros(4, 2, rotary_dim // 2),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64),
        KVLayer(cache, cache.clone(), scales),
        norms,
    )


SHAPES = [
    ((32, 8, 64), 64, None),  # Llama 3.2 1B
    ((32, 32, 80), 32, None),  # Phi-2
    ((32, 32, 96), 96, None),  # Phi-3 mini
    ((16, 8, 128), 128, "before"),  # Qwen3 0.6B
    ((28, 4, 128), 128, None),  # Qwen2.5 7B
    ((8, 4, 256), 256, "before"),  # Gemma 3 4B
    ((32, 8, 128), 128, "after"),  # Hunyuan 7B
]
SHORT = ("before", 128, torch.bfloat16, torch.float8_e4m3fn)
CASES = [
    Case(
        f"rotary_store-{heads}-{rotary_dim}-{norm}-{dtype}-{codes}".replace("torch.", ""),
        functools.partial(launch, heads, rotary_dim, norm, dtype, codes),
        short=("sm_90",) if (norm, heads[2], dtype, codes) == SHORT else (),
    )
    for heads, rotary_dim, norm in SHAPES
    for dtype in (torch.bfloat16, torch.float32)
    for codes in (None, torch.int8, torch.float8_e4m3fn)
]
