"""Vectors of texts of mixed length against sentence-transformers, or against Transformers.

    python benchmarks/embedding.py MODEL [--texts 2000] [--turns 3] [--dtype float32]
        [--quantization int8] [--max-num-batched-tokens 2048]
        [--backend torch|openvino|openvino-int8|transformers] [--peer-python PYTHON]
        [--device cuda]

Both sides take turns that change places, each in a process of its own, on the same texts, whose
lengths have a 10th percentile of 68 tokens and a 90th of 465, cut to the model's limit. The other
side runs in the environment of PYTHON and sorts texts by their lengths, which is its default; its
batches have 32 texts. Prints Markdown: seconds, texts and tokens per second, and the least cosine
of the vectors of both.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before torch is imported

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.other_process import environment
from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.execution.pooling.pooled_texts import PooledTexts
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig

Vectors = NDArray[np.float32]
Side = Callable[[int], tuple[float, Vectors]]
BATCH = 32
BACKENDS = ("torch", "openvino", "openvino-int8", "transformers")
WORKER = ROOT / "benchmarks" / "peers" / "embedding_worker.py"
WORDS = ROOT / "README.md"


def mixed_texts(count: int, tokenizer: Tokenizer) -> list[str]:
    """Return texts of this repository's words, with log-normal lengths in tokens."""
    words = WORDS.read_text().split()
    tokens = sum(map(len, tokenizer.encode_batch([" ".join(words)], False)))
    generator = np.random.default_rng(0)
    # Percentiles of 68 and 465: a median of 178 and a deviation of 0.75 of the logarithm.
    lengths = np.exp(generator.normal(np.log(178), 0.75, count)) * len(words) / tokens
    found = []
    for length in np.clip(lengths, 2, 600).astype(int).tolist():
        start = int(generator.integers(len(words) - length))
        found.append(" ".join(words[start : start + length]))
    return found


def ours(arguments: argparse.Namespace) -> PooledTexts:
    """Return pagedrun's model."""
    folder = arguments.model
    given: dict[str, Any] = {
        key: getattr(arguments, key) for key in ("device", "dtype", "quantization")
    }
    if arguments.max_num_batched_tokens is not None:
        given["max_num_batched_tokens"] = arguments.max_num_batched_tokens
    config = EngineConfig.fitting(model=folder, **given)
    return PooledTexts(config, folder, Tokenizer.from_folder(folder))


class OtherSide:
    """Vectors by another program, in a process of its own that reads one line for each run."""

    def __init__(self, arguments: argparse.Namespace, texts: list[str], scratch: Path) -> None:
        self._vectors = scratch / "vectors.npy"
        self._process = subprocess.Popen(
            [arguments.peer_python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(arguments.peer_python),
        )
        job = {
            "model": str(arguments.model.resolve()),
            "dtype": arguments.dtype,
            "backend": arguments.backend,
            "texts": texts,
            "device": arguments.device,
            "batch": BATCH,
            "threads": cpu_quota(),
            "scratch": str(scratch),
        }
        self.name: str = self._ask(job)["version"]

    def run(self, num_texts: int) -> tuple[float, Vectors]:
        """Return the seconds and the vectors of the first texts."""
        seconds = self._ask({"texts": num_texts, "vectors": str(self._vectors)})["seconds"]
        return seconds, np.load(self._vectors)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the other side ended; its message is above")
        found: dict[str, Any] = json.loads(answer)
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--backend", default="torch", choices=BACKENDS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    torch.set_num_threads(cpu_quota())
    model = ours(arguments)
    texts = mixed_texts(arguments.texts, model.tokenizer)

    def own(num_texts: int) -> tuple[float, Vectors]:
        began = time.perf_counter()
        vectors = model.embed(texts[:num_texts], Overlong.TRUNCATE_RIGHT)
        return time.perf_counter() - began, vectors

    with TemporaryDirectory() as scratch:
        other = OtherSide(arguments, texts, Path(scratch))
        measure(model, {"pagedrun": own, other.name: other.run}, texts, arguments.turns)


def measure(model: PooledTexts, sides: dict[str, Side], texts: list[str], num_turns: int) -> None:
    """Let both sides take turns, pagedrun first, and print."""
    vectors: dict[str, Vectors] = {}
    seconds: dict[str, list[float]] = {each: [] for each in sides}
    for run in sides.values():
        run(64)  # compiles and warms up
    for turn in range(num_turns):
        for each in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            taken, vectors[each] = sides[each](len(texts))
            seconds[each].append(taken)
    num_tokens = model.report["tokens"]["prompt"]
    name = list(sides)[-1]
    first, second = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors.values()
    )
    print("| side | seconds (median, all) | texts/s | tokens/s |\n|---|---|---|---|")
    for each, found in seconds.items():
        middle, shown = median(found), ", ".join(f"{value:.2f}" for value in found)
        print(
            f"| {each} | {middle:.2f} ({shown}) | {len(texts) / middle:,.0f} | "
            f"{num_tokens / middle:,.0f} |"
        )
    ratios = [b / a for a, b in zip(seconds["pagedrun"], seconds[name], strict=True)]
    print(f"\nratio by turn: {', '.join(f'{each:.2f}' for each in ratios)}; ", end="")
    print(f"least cosine {float((first * second).sum(1).min()):.7f}; {num_tokens:,} tokens")


if __name__ == "__main__":
    main()
