"""Time of attention over keys and values in 8 bits, against bfloat16.

    python benchmarks/kv_speed.py --turns 7 --machine "two cores of ..." --save <date>-<what>.md

Attention alone, of one layer with the heads of Qwen3-0.6B (16, of which 8 for keys and values, 128
elements each), over scattered blocks. The formats take turns; printed are the median times,
and how many times as fast codes are as bfloat16.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before torch and numba

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import (
    DecodeInputs,
    KVLayer,
    KVScales,
    PrefillInputs,
    Softmax,
)
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.prefix_sharing import PrefixSharing

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 128, 16
SOFTMAX = Softmax(HEAD_DIM**-0.5)
FORMATS = {"bfloat16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}

Attend = Callable[[KVLayer], object]


def layer_of(num_blocks: int, dtype: torch.dtype) -> KVLayer:
    """Return blocks of random numbers; their values do not affect the time."""
    shape = (num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    keys, values = (torch.randint(-30, 31, shape, dtype=torch.int8).to(dtype) for _ in range(2))
    if dtype is torch.bfloat16:
        return KVLayer(keys, values)
    return KVLayer(keys, values, KVScales(*(torch.full(shape[:3], 0.01) for _ in range(2))))


def own_tokens(num_rows: int, num_tokens: int) -> tuple[int, Attend]:
    """Return the number of blocks, and decode attention with a context per row."""
    tables = scattered(num_rows, num_tokens)
    q = queries(num_rows)
    rows = DecodeInputs(as_int32(range(num_rows)), as_int32([num_tokens] * num_rows))
    return tables.numel(), lambda layer: CpuBackend.decode_attention(
        q, layer, tables, rows, SOFTMAX, None
    )


def shared_tokens(num_rows: int, num_tokens: int) -> tuple[int, Attend]:
    """Return the number of blocks, and decode attention over one shared context."""
    tables = scattered(1, num_tokens).expand(num_rows, -1).contiguous()
    shared = np.full(num_rows, num_tokens // PARTITION_TOKENS, np.int32)
    rows = np.arange(num_rows, dtype=np.int32)
    groups = PrefixSharing(share=True).groups(tables.numpy(), rows, shared, BLOCK_SIZE)
    assert groups is not None
    q = queries(num_rows)
    return tables.shape[1], lambda layer: group_attention.prefix_attention(
        q, layer, tables, groups, SOFTMAX
    )


def prompt_tokens(num_queries: int, num_before: int) -> tuple[int, Attend]:
    """Return the number of blocks, and attention of a prompt chunk."""
    tables = scattered(1, num_before + num_queries)
    chunk = PrefillInputs(as_int32([0, num_queries]), as_int32([0]), as_int32([num_before]))
    q = queries(num_queries)
    return tables.numel(), lambda layer: group_attention.prefill_attention(
        q, layer, tables, chunk, SOFTMAX, None
    )


def scattered(num_rows: int, num_tokens: int) -> Tensor:
    """Return block tables with blocks in random order."""
    per_row = -(-num_tokens // BLOCK_SIZE)
    return torch.randperm(num_rows * per_row).view(num_rows, per_row).to(torch.int32)


def queries(count: int) -> Tensor:
    return torch.randn(count, HEADS, HEAD_DIM).bfloat16()


def as_int32(numbers: range | list[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32)


def times(num_blocks: int, attend: Attend, turns: int) -> dict[str, float]:
    """Return the median milliseconds of each format."""
    layers = {name: layer_of(num_blocks, dtype) for name, dtype in FORMATS.items()}
    taken: dict[str, list[float]] = {name: [] for name in FORMATS}
    for turn in range(turns + 1):
        for name, layer in layers.items():
            began = time.perf_counter()
            attend(layer)
            if turn:  # the first one compiles, and touches the memory
                taken[name].append(time.perf_counter() - began)
    return {name: median(each) * 1e3 for name, each in taken.items()}


def table(cases: dict[str, tuple[int, Attend]], turns: int) -> list[str]:
    """Return the lines of the table, in Markdown."""
    lines = [
        "| attention | bfloat16 ms | int8 ms | fp8 ms | int8 × | fp8 × |",
        "|---|" + "---|" * 5,
    ]
    for name, (num_blocks, attend) in cases.items():
        taken = times(num_blocks, attend, turns)
        columns = [f"{each:.2f}" for each in taken.values()]
        columns += [f"{taken['bfloat16'] / taken[each]:.2f}" for each in ("int8", "fp8")]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--machine", default="not named")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    cases = {
        "16 rows, 4,096 tokens of their own": own_tokens(16, 4096),
        "1 row, 16,384 tokens of its own": own_tokens(1, 16384),
        "16 rows, 2,048 tokens in common": shared_tokens(16, 2048),
        "64 rows, 2,048 tokens in common": shared_tokens(64, 2048),
        "512 tokens of a prompt behind 4,096": prompt_tokens(512, 4096),
    }
    lines = [
        f"command: `python {shlex.join(sys.argv)}`  ",
        f"machine: {asked.machine}  ",
        f"versions: torch {torch.__version__}, python {sys.version.split()[0]}  ",
        f"date: {time.strftime('%Y-%m-%d')}",
        "",
        *table(cases, asked.turns),
    ]
    print("\n".join(lines))
    if asked.save is not None:
        title = "# The time of attention over 8-bit keys and values"
        asked.save.write_text("\n".join([title, "", *lines, ""]))


if __name__ == "__main__":
    main()
