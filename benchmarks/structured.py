"""What structured output adds to a decode step: masks for many rows of a large vocabulary.

    python benchmarks/structured.py [--rows 64] [--vocab 151936] [--steps 60] [--model FOLDER]

Each row writes JSON by a schema of its own (or all by one, with --one-schema). For every step it
prints the medians, in milliseconds, of

    take    going on by the rows' tokens and looking for forced ones, on the critical path
    fill    computing the next masks; a run does this in a thread beside the model's step
    apply   taking what is forbidden out of the logits

Compare their sum, or take + apply where the step hides the rest, with a decode step of the same
rows: `pagedrun bench throughput --shape qwen3-0.6b --rows 64`. Without --model the words are those
of the demo's tokenizer and random bytes up to the size of the vocabulary.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer as Words  # noqa: E402
from tokenizers import models, pre_tokenizers  # noqa: E402

from pagedrun.kernels.cpu import mask_logits  # noqa: E402
from pagedrun.paged.text.grammar.grammars import Grammars  # noqa: E402
from pagedrun.paged.text.grammar.mask_filler import MaskFiller  # noqa: E402
from pagedrun.paged.text.grammar.matcher import GrammarMatcher  # noqa: E402
from pagedrun.paged.text.tokenizer import Tokenizer  # noqa: E402
from pagedrun.paged.values.sampling.sampling_params import SamplingParams  # noqa: E402


def schema(number: int) -> str:
    """Return the schema of a record as people ask for them."""
    properties = {
        f"title_{number}": {"type": "string"},
        "summary": {"type": "string", "maxLength": 200},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "score": {"type": "number", "minimum": 0, "maximum": 10},
        "kind": {"enum": ["article", "book", "letter", "other"]},
    }
    return json.dumps({"type": "object", "properties": properties, "required": list(properties)})


class MadeWords:
    """A byte-level tokenizer of a given size whose longer words are random letters."""

    def __init__(self, vocab_size: int) -> None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {letter: place for place, letter in enumerate(letters)}
        rng = random.Random(0)
        while len(vocab) < vocab_size - 1:
            start = rng.choice(["", "Ġ"])
            word = start + "".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(2, 9)))
            vocab.setdefault(word, len(vocab))
        vocab["<end>"] = len(vocab)
        self._words = Words(models.BPE(vocab=vocab, merges=[]))
        self._words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._words.add_special_tokens(["<end>"])
        self.eos_token_id = vocab["<end>"]

    def to_json(self) -> str:
        return str(self._words.to_str())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--model", type=Path, help="take the tokenizer of this folder")
    parser.add_argument("--one-schema", action="store_true")
    asked = parser.parse_args()
    made = MadeWords(asked.vocab) if asked.model is None else Tokenizer.from_folder(asked.model)
    assert made.eos_token_id is not None
    grammars = Grammars.of(made, asked.vocab, [made.eos_token_id])
    rng = random.Random(1)
    began = time.perf_counter()
    matchers = []
    for row in range(asked.rows):
        text = schema(0 if asked.one_schema else row)
        structure = SamplingParams(json_schema=text).structure
        assert structure is not None
        matchers.append(GrammarMatcher(grammars.compiled(structure).result()))
    print(f"compiled in {time.perf_counter() - began:.2f} s")
    logits = torch.randn(asked.rows, asked.vocab)
    rows = torch.arange(asked.rows)
    filler = MaskFiller()
    times: dict[str, list[float]] = {"take": [], "fill": [], "apply": []}
    for _ in range(asked.steps):
        masks = torch.from_numpy(np.stack([each.mask for each in matchers]))
        started = time.perf_counter()
        masked = mask_logits(logits, rows, masks)
        times["apply"].append(time.perf_counter() - started)
        tokens = [int(rng.choice(each.isfinite().nonzero())) for each in masked]
        started = time.perf_counter()
        going = []
        for matcher, token in zip(matchers, tokens, strict=True):
            matcher.take(token)
            if not matcher.is_over and matcher.forced_token() is None:
                going.append(matcher)
        times["take"].append(time.perf_counter() - started)
        started = time.perf_counter()
        filler.begin(going)
        filler.wait()
        times["fill"].append(time.perf_counter() - started)
        if any(each.is_over for each in matchers):
            break
    for name, found in times.items():
        print(f"{name:5} {1000 * statistics.median(found):7.2f} ms, {len(found)} steps")


if __name__ == "__main__":
    main()
