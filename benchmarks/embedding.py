"""Vectors of texts of mixed length against sentence-transformers, or without it Transformers.

    python benchmarks/embedding.py MODEL [--texts 2000] [--turns 3] [--dtype float32]
        [--quantization int8] [--max-num-batched-tokens 2048]

Both sides take turns that change places, in one process and on the same texts, whose lengths have
a 10th percentile of 68 tokens and a 90th of 465, cut to the model's limit. The other side sorts
texts by their lengths, which is its default; its batches have 32 texts. Prints Markdown: seconds,
texts and tokens per second, and the least cosine of the vectors of both.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before torch is imported

import numpy as np
import torch
from numpy.typing import NDArray

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.execution.pooling.pooled_texts import PooledTexts
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig

Vectors = NDArray[np.float32]
BATCH = 32
WORDS = Path(__file__).resolve().parents[1] / "README.md"


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


def ours(
    folder: Path, arguments: argparse.Namespace
) -> tuple[PooledTexts, Callable[[list[str]], Vectors]]:
    """Return pagedrun's model and its function from texts to vectors."""
    given: dict[str, Any] = {"dtype": arguments.dtype, "quantization": arguments.quantization}
    if arguments.max_num_batched_tokens is not None:
        given["max_num_batched_tokens"] = arguments.max_num_batched_tokens
    config = EngineConfig.fitting(model=folder, **given)
    model = PooledTexts(config, folder, Tokenizer.from_folder(folder))
    return model, lambda texts: model.embed(texts, Overlong.TRUNCATE_RIGHT)


def theirs(folder: Path, dtype: str) -> tuple[str, Callable[[list[str]], Vectors]]:
    """Return the other side's name and its function from texts to vectors."""
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return "Transformers", _by_transformers(folder, kind)
    settings = {"dtype": kind}
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs=settings)

    def encode(texts: list[str]) -> Vectors:
        vectors: Vectors = model.encode(texts, batch_size=BATCH)
        return vectors.astype(np.float32)

    return "sentence-transformers", encode


def _by_transformers(folder: Path, dtype: torch.dtype) -> Callable[[list[str]], Vectors]:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def encode(texts: list[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.empty((len(texts), model.config.hidden_size), np.float32)
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            batch = tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt"
            )
            hidden = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            out[rows] = torch.nn.functional.normalize(mean).numpy()
        return out

    return encode


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
    arguments = parser.parse_args()
    torch.set_num_threads(cpu_quota())
    model, own = ours(arguments.model, arguments)
    name, other = theirs(arguments.model, arguments.dtype)
    texts = mixed_texts(arguments.texts, model.tokenizer)
    sides = {"pagedrun": own, name: other}
    vectors = {each: encode(texts[:64]) for each, encode in sides.items()}  # compiles and warms up
    seconds: dict[str, list[float]] = {each: [] for each in sides}
    for turn in range(arguments.turns):
        for each in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            began = time.perf_counter()
            vectors[each] = sides[each](texts)
            seconds[each].append(time.perf_counter() - began)
    num_tokens = model.report["tokens"]["prompt"]
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
