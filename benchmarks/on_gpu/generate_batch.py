"""Transformers' continuous batching on rows of `bench throughput`, with the same random weights.

    python benchmarks/on_gpu/generate_batch.py --device cuda --shape qwen3-0.6b --rows 128

Prints seconds and tokens a second as JSON. The first run warms up and is not counted.
"""

import argparse
import json
import sys
from time import perf_counter
from typing import Any

import torch

from benchmarks.peers.transformers_peer import load_model
from pagedrun.paged.bench.workload import BenchModel, Workload


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--shared", type=int, default=1024)
    parser.add_argument("--unique", type=int, default=64)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--num-blocks", type=int, help="of its cache; it takes most of the memory")
    given = parser.parse_args()
    bench_model = BenchModel.from_shape(given.shape)
    model = load_model(bench_model, getattr(torch, given.dtype), torch.device(given.device))
    rows = Workload(given.rows, given.shared, given.unique, given.output)
    prompts = [
        list(request.prompt_token_ids) for request in rows.requests(bench_model.config.vocab_size)
    ]
    answer(model, prompts[:2], 4, given.num_blocks)
    began = perf_counter()
    answers = answer(model, prompts, given.output, given.num_blocks)
    seconds = perf_counter() - began
    generated = sum(map(len, answers))
    print(f"{generated:,} tokens in {seconds:.2f} s", file=sys.stderr)
    result: dict[str, Any] = {
        **vars(given),
        "seconds": seconds,
        "generated_tokens": generated,
        "generated_tokens_per_s": generated / seconds,
        "prompt_tokens_per_s": sum(map(len, prompts)) / seconds,
    }
    table = ["| | |", "|:--|--:|", *(f"| {name} | {value} |" for name, value in result.items())]
    print(json.dumps({**result, "table": table}))


def answer(
    model: Any, prompts: list[list[int]], num_tokens: int, num_blocks: int | None
) -> list[list[int]]:
    """Return the new tokens of each prompt, greedy, to the full length."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    config = GenerationConfig(
        max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    sizes: dict[str, Any] = {}
    if num_blocks is not None:
        size = {"num_blocks": num_blocks, "max_batch_tokens": num_blocks}
        sizes["continuous_batching_config"] = ContinuousBatchingConfig(**size)
    outputs = model.generate_batch(prompts, generation_config=config, **sizes)
    return [list(each.generated_tokens) for each in outputs.values()]


if __name__ == "__main__":
    main()
