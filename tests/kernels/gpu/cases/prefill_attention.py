"""Chunks of many rows and of few, over caches of every kind; texts seen to both sides."""

import functools
from unittest.mock import patch

import torch

from pagedrun.kernels.attention_inputs import (
    KVLayer,
    KVScales,
    PrefillInputs,
    RelativeTerms,
    Softmax,
)
from pagedrun.kernels.gpu.attention import prefill_attention
from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(
    heads: tuple[int, int, int],
    num_tokens: int,
    dtype: torch.dtype,
    codes: torch.dtype | None,
    block_size: int,
    window: int | None,
    softcap: float | None,
    has_sinks: bool = False,
    is_causal: bool = True,
    terms: str | None = None,
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    cache = torch.zeros(2, num_kv_heads, block_size, head_dim).to(codes or dtype)
    scales = None if codes is None else KVScales(*torch.ones(2, *cache.shape[:3]))
    ints = torch.zeros(2, dtype=torch.int32)
    with patch.object(prefill_attention, "MIN_TOKENS", 0):
        GpuBackend.prefill_attention(
            torch.zeros(num_tokens, num_heads, head_dim, dtype=dtype),
            KVLayer(cache, cache.clone(), scales),
            torch.zeros(1, 64, dtype=torch.int32),
            PrefillInputs(ints, ints[:1], ints[:1], is_causal),
            Softmax(
                *(0.1, softcap, torch.zeros(num_heads) if has_sinks else None),
                None if terms is None else relative_terms(terms, num_tokens, num_heads, dtype),
            ),
            window,
        )


def relative_terms(kind: str, num_tokens: int, num_heads: int, dtype: torch.dtype) -> RelativeTerms:
    """Return the table of MPNet or the tables of DeBERTa."""
    columns = torch.zeros(1023, dtype=torch.int32)
    if kind == "table":
        table = torch.zeros(num_heads, 32, dtype=dtype)
        return RelativeTerms(columns, table.expand(num_tokens, -1, -1))
    tables = torch.zeros(2, num_heads, num_tokens, 512, dtype=dtype).transpose(1, 2)
    return RelativeTerms(columns, *tables)


BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
HEADS = [
    (32, 8, 64),
    (32, 32, 80),
    (32, 32, 96),
    (16, 8, 128),
    (28, 4, 128),
    (8, 4, 256),
    (16, 2, 512),
]
# The engine refuses quantised caches in float32, where registers would not do.
KINDS: list[tuple[torch.dtype, torch.dtype | None, int, int | None, float | None]] = [
    *((BFLOAT16, codes, 64, None, None) for codes in (None, torch.int8, torch.float8_e4m3fn)),
    (FLOAT32, None, 64, None, None),
]
KINDS += [(BFLOAT16, None, 16, None, None), (BFLOAT16, None, 64, 1024, 50.0)]


def _short(
    heads: tuple[int, int, int],
    num_tokens: int,
    kind: tuple[torch.dtype, torch.dtype | None, int, int | None, float | None],
) -> tuple[str, ...]:
    if heads == HEADS[3] and num_tokens > 1 and kind == KINDS[0]:
        return ("sm_90",)
    # The largest heads on a chip with little shared memory: they did not fit.
    return ("sm_86",) if heads == HEADS[6] and num_tokens > 1 and kind == KINDS[0] else ()


# MiniLM, BERT and ModernBERT, gte-Qwen2, EmbeddingGemma.
BOTH_SIDES = [(12, 12, 32), (12, 12, 64), (28, 4, 128), (3, 1, 256)]
CASES = (
    [
        Case(
            f"prefill-{heads}-{num_tokens}-{'-'.join(map(str, kind))}".replace("torch.", ""),
            functools.partial(launch, heads, num_tokens, *kind),
            short=_short(heads, num_tokens, kind),
            # Larger heads leave no registers for the rows of a whole warp group.
            matrix=None if kind[0] is FLOAT32 else "any" if heads[2] > 256 else "wide",
        )
        for heads in HEADS
        for num_tokens in (512, 1)
        for kind in KINDS
    ]
    + [
        Case(
            f"prefill-sinks-{window}-{num_tokens}",
            functools.partial(
                launch, (64, 8, 64), num_tokens, BFLOAT16, None, 64, window, None, has_sinks=True
            ),
            matrix="wide",
        )
        for num_tokens in (512, 1)
        for window in (None, 128)
    ]
    + [
        Case(
            f"prefill-both-sides-{heads}-{num_tokens}-{dtype}-{window}".replace("torch.", ""),
            functools.partial(
                launch, heads, num_tokens, dtype, None, 64, window, None, is_causal=False
            ),
            matrix=None if dtype is FLOAT32 else "wide",
        )
        for heads in BOTH_SIDES
        for num_tokens in (512, 1)
        for dtype in (BFLOAT16, FLOAT32)
        for window in (None, 65)
    ]
    + [
        Case(
            f"prefill-terms-{kind}-{num_tokens}-{dtype}".replace("torch.", ""),
            functools.partial(
                launch,
                *((12, 12, 64), num_tokens, dtype, None, 64, None, None),
                is_causal=False,
                terms=kind,
            ),
            short=("sm_90",) if (kind, num_tokens, dtype) == ("both", 512, BFLOAT16) else (),
            matrix=None if dtype is FLOAT32 else "wide",
        )
        for kind in ("table", "both")
        for num_tokens in (512, 1)
        for dtype in (BFLOAT16, FLOAT32)
    ]
)
