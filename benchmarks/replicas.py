"""Cost and gain of replicas on this machine: `generate` with and without `--replicas`, in turns.

    python benchmarks/replicas.py                      # 20,000 rows of the bundled recipe
    python benchmarks/replicas.py --shape qwen3-0.6b   # two of its layers, random weights

Each turn answers the same file in four ways, one after the other, each a command of its own: one
engine of one thread, one replica of one thread, one engine of as many threads as there are
replicas, and the replicas of one thread each. Printed are the seconds of each run, from the first
unit to the last row as the report has them (without loading), and the medians of the ratios within
turns: what others do on the machine then weighs on both sides.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pagedrun.recipes.demo import demo_prompts_path

ROOT = Path(__file__).resolve().parents[1]
NUM_LAYERS = 2
NEW_TOKENS = 32  # of a row with random weights


class Way(NamedTuple):
    """One way to answer the file. `replicas` is 0 for an engine in the command's own process."""

    name: str
    threads: int
    replicas: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="20,000, or 256 of a shape")
    parser.add_argument("--shape", help="a model of this shape in place of the bundled one")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print each turn as it ends")
    given = parser.parse_args()
    count = given.replicas
    one, same = Way("one engine", 1, 0), Way(f"one engine of {count} threads", count, 0)
    single, several = Way("1 replica", 1, 1), Way(f"{count} replicas", 1, count)
    ways = (one, single, same, several)
    with TemporaryDirectory() as folder:
        flags = prepare(Path(folder), given.shape, given.rows)
        for way in ways:  # kernels are compiled, files are read
            run(Path(folder), way, [*flags, "--limit", "64"])
        turns = []
        for _ in range(given.turns):
            turns.append({way.name: run(Path(folder), way, flags) for way in ways})
            if given.json:
                print(json.dumps(turns[-1]), flush=True)
    for way in ways:
        seconds = ", ".join(f"{turn[way.name]:.2f}" for turn in turns)
        print(f"{way.name:24} {seconds} s")
    for what, above, below in (
        ("overhead of a replica", single, one),
        ("overhead at the same threads", several, same),
        (f"1 to {count} replicas, times as fast", single, several),
    ):
        ratios = [turn[above.name] / turn[below.name] for turn in turns]
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{what:36} {median(ratios):.3f}  ({shown})")


def prepare(folder: Path, shape: str | None, num_rows: int | None) -> list[str]:
    """Write rows, and a model of a shape; return the flags of the command."""
    rows = folder / "rows.jsonl"
    if shape is None:
        rows.write_text("".join(f"{json.dumps(row)}\n" for row in demo_rows(num_rows or 20_000)))
        return [str(rows), "--model", "demo", "--temperature", "0.8"]
    model = folder / "model"
    vocab_size = save_shape(shape, model)
    made = random_rows(num_rows or 256, vocab_size)
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in made))
    ends = ["--max-tokens", str(NEW_TOKENS), "--ignore-eos", "--num-blocks", "4000"]
    return [str(rows), "--model", str(model), "--temperature", "0.8", *ends]


def demo_rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield the bundled prompts repeatedly, with other seeds."""
    prompts = [json.loads(line) for line in demo_prompts_path().read_text("utf-8").splitlines()]
    for index in range(count):
        seed, place = divmod(index, len(prompts))
        yield {**prompts[place], "id": f"row-{index}", "seed": seed}


def random_rows(count: int, vocab_size: int) -> Iterator[dict[str, Any]]:
    """Yield prompts of 200 tokens; 16 rows each have 128 of them in common."""
    pick = random.Random(0)
    stem: list[int] = []
    for index in range(count):
        if index % 16 == 0:
            stem = [pick.randrange(vocab_size) for _ in range(128)]
        own = [pick.randrange(vocab_size) for _ in range(72)]
        yield {"id": f"row-{index}", "prompt_token_ids": [*stem, *own]}


def save_shape(name: str, folder: Path) -> int:
    """Write a model of a named shape, cut to `NUM_LAYERS`, with random weights.

    Return the size of its vocabulary."""
    import tokenizers
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    from pagedrun.paged.bench.model_shapes import Shape

    folder.mkdir()
    shape = Shape.named(name, NUM_LAYERS)
    (folder / "config.json").write_text(json.dumps(shape.fields))
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    words = {str(token): token for token in range(shape.config.vocab_size)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return shape.config.vocab_size


def run(folder: Path, way: Way, flags: list[str]) -> float:
    """Answer the file in a way; return the seconds of its run."""
    output = folder / "out.jsonl"
    command = [sys.executable, "-m", "pagedrun", "generate", *flags, "-o", str(output)]
    command += ["--overwrite", "--quiet", "--ordered"]
    if way.replicas:
        command += ["--replicas", str(way.replicas), "--cpus-per-replica", str(way.threads)]
    threads = {"OMP_NUM_THREADS": str(way.threads), "NUMBA_NUM_THREADS": str(way.threads)}
    environment = {**os.environ, **threads, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, env=environment, check=True, cwd=folder)
    report = json.loads(output.with_name("out.jsonl.report.json").read_text())
    assert not report["rows"]["failed"]
    return float(report["time"]["run_s"])


if __name__ == "__main__":
    main()
