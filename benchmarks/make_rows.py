"""Rows for planning at scale: templates with Zipf-like sharing, log-normal lengths, a fixed seed.

    python benchmarks/make_rows.py 100000 rows.jsonl

A few companies have a system prompt each, each company has tasks that continue it, and each task
has rows; which task a row has follows a power law. Words are made of syllables, so that any
tokenizer cuts them into about as many tokens everywhere.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NUM_COMPANIES = 5
NUM_TASKS = 200
ZIPF = 1.2  # the exponent of how often a task is asked
SYLLABLES = ("ka", "lo", "mi", "ren", "sta", "tor", "ul", "ve", "win", "ash")


def rows(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    words = ["".join(draw.choice(SYLLABLES, size=draw.integers(1, 4))) for _ in range(2000)]

    def text(median: int, sigma: float, most: int) -> str:
        length = int(np.clip(draw.lognormal(np.log(median), sigma), 1, most))
        return " ".join(words[i] for i in draw.integers(len(words), size=length))

    companies = [text(60, 0.3, 200) for _ in range(NUM_COMPANIES)]
    tasks = [(companies[i % NUM_COMPANIES], text(100, 0.5, 400)) for i in range(NUM_TASKS)]
    weights = np.arange(1, NUM_TASKS + 1, dtype=np.float64) ** -ZIPF
    chosen = draw.choice(NUM_TASKS, size=count, p=weights / weights.sum())
    outputs = np.clip(draw.lognormal(np.log(40), 0.7, size=count), 1, 256).astype(int)
    for index in range(count):
        company, task = tasks[chosen[index]]
        yield {
            "id": f"row-{index}",
            "prompt": f"{company}\n{task}\n{text(25, 0.7, 300)}",
            "max_tokens": int(outputs[index]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with asked.output.open("w") as file:
        for row in rows(asked.count, asked.seed):
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
