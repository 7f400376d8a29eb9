"""Error of attention over keys and values in 8 bits instead of 16.

    python benchmarks/kv_quantization.py --machine "two cores of ..." --save <date>-<what>.md

Keys and values in float32 are rounded to bfloat16, or quantized by `pagedrun.kernels.reference`
with one scale for each head of each token. Attention over each is compared with attention over the
float32 ones, all of it in float64, so that nothing but the cache differs.
"""

import argparse
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, KVScales, PrefillInputs, Softmax
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.reference import attention as reference
from pagedrun.kernels.reference.attention import gather_context
from pagedrun.kernels.reference.kv_cache import quantize

DEMO = Path(__file__).parents[1] / "recipes" / "demo"
CACHES = (torch.bfloat16, torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class Sample:
    """The last queries of a context: q [num_queries, num_heads, head_dim], keys and values
    [num_kv_heads, num_tokens, head_dim], all float32."""

    q: Tensor
    keys: Tensor
    values: Tensor


def random_sample(num_tokens: int, outlier: float, seed: int) -> Sample:
    """Return normal data; four channels of each key head are `outlier` times as large.

    Keys of trained models have such channels, the same ones for every token of a head, with values
    about a mean far from zero; values have none (Liu et al. 2024, "KIVI"). Queries are
    scaled so that scores have the spread of plain normal data.
    """
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(64, 16, 128, generator=generator)
    keys, values = torch.randn(2, 4, num_tokens, 128, generator=generator)
    if outlier > 1:
        for head in keys:
            channels = torch.randperm(128, generator=generator)[:4]
            signs = torch.randn(4, generator=generator).sign()
            head[:, channels] = (head[:, channels] / 4 + signs) * outlier
    return Sample(q, keys, values)


def demo_samples(num_rows: int) -> list[Sample]:
    """Return attention inputs of the bundled model for the bundled prompts, in float32."""
    import json

    from pagedrun.paged.llm import LLM
    from pagedrun.paged.values.sampling_params import SamplingParams

    samples: list[Sample] = []
    genuine = group_attention.prefill_attention

    def record(
        q: Tensor, layer: KVLayer, tables: Tensor, chunks: PrefillInputs, *rest: Any, **named: Any
    ) -> Tensor:
        places = zip(chunks.table_rows.tolist(), chunks.first_positions.tolist(), strict=True)
        for chunk, (row, first) in enumerate(places):
            own = slice(int(chunks.chunk_starts[chunk]), int(chunks.chunk_starts[chunk + 1]))
            end = first + own.stop - own.start
            keys, values = gather_context(layer, tables[row], end)
            samples.append(Sample(q[own][-64:].clone(), keys.clone(), values.clone()))
        return genuine(q, layer, tables, chunks, *rest, **named)

    lines = (DEMO / "prompts.jsonl").read_text().splitlines()[:num_rows]
    with patch.object(group_attention, "prefill_attention", record):
        LLM(DEMO, dtype="float32").generate(
            [json.loads(line)["messages"] for line in lines], SamplingParams(max_tokens=1)
        )
    return samples


def attend(sample: Sample, cache: torch.dtype | None) -> Tensor:
    """Return attention in float64 over keys and values kept in a dtype; None keeps float32."""
    num_tokens, num_queries = sample.keys.shape[1], len(sample.q)
    keys, values = sample.keys[None], sample.values[None]  # one block holds the context
    scales = None
    if cache in (torch.int8, torch.float8_e4m3fn):
        keys, key_scales = quantize(keys, cache)
        values, value_scales = quantize(values, cache)
        scales = KVScales(key_scales.double(), value_scales.double())
    elif cache is not None:
        keys, values = keys.to(cache).double(), values.to(cache).double()
    else:
        keys, values = keys.double(), values.double()

    def as_int32(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    return reference.prefill_attention(
        sample.q.double(),
        KVLayer(keys, values, scales),
        as_int32(0)[None],
        PrefillInputs(as_int32(0, num_queries), as_int32(0), as_int32(num_tokens - num_queries)),
        Softmax(sample.q.shape[2] ** -0.5),
        None,
    )


def errors(samples: list[Sample], cache: torch.dtype) -> tuple[float, float]:
    """Return the root mean square error and the largest, relative to the RMS of the result."""
    exact = [attend(sample, None) for sample in samples]
    moved = [attend(sample, cache) - each for sample, each in zip(samples, exact, strict=True)]
    size = torch.cat([each.flatten() for each in exact]).square().mean().sqrt()
    error = torch.cat([each.flatten() for each in moved])
    return (error.square().mean().sqrt() / size).item(), (error.abs().max() / size).item()


def table(num_tokens: int, num_rows: int) -> list[str]:
    """Return the lines of the table, in Markdown."""
    data = {
        f"normal, {num_tokens} tokens": [random_sample(num_tokens, 1, seed) for seed in range(3)],
        **{
            f"key channels {outlier} times as large, {num_tokens} tokens": [
                random_sample(num_tokens, outlier, seed) for seed in range(3)
            ]
            for outlier in (8, 20)
        },
        f"the demo model's, {num_rows} prompts": demo_samples(num_rows),
    }
    lines = ["| keys and values | cache | RMS error | largest error |", "|---|---|---|---|"]
    for name, samples in data.items():
        for cache in CACHES:
            error, largest = errors(samples, cache)
            kind = str(cache).removeprefix("torch.")
            lines.append(f"| {name} | {kind} | {error:.2%} | {largest:.1%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--machine", default="not named")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    lines = [
        f"command: `python {shlex.join(sys.argv)}`  ",
        f"machine: {asked.machine}  ",
        f"versions: torch {torch.__version__}, python {sys.version.split()[0]}  ",
        f"date: {time.strftime('%Y-%m-%d')}",
        "",
        *table(asked.tokens, asked.rows),
    ]
    print("\n".join(lines))
    if asked.save is not None:
        title = "# Attention over 8-bit keys and values"
        asked.save.write_text("\n".join([title, "", *lines, ""]))


if __name__ == "__main__":
    main()
