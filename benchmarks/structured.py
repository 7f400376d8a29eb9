"""What structured output adds to a decode step of many rows with a large vocabulary.

    python benchmarks/structured.py [--rows 64] [--tokens 24] [--turns 3] [--layers N]

One model with random weights answers the same rows in turns:

    free      without a structure
    masked    every row JSON by a schema of its own (all by one, with --one-schema), a token a step
    jumping   the same, with the tokens that must follow taken without a step of their own

Printed are the median decode step of the first two with what masks add to it, the tokens a second
of the last two, and where the time of a masked step goes, by op. The words of the tokenizer are
random; as many of them as in a real one have quotes, brackets and digits in them. A schema's first
mask and its compilation belong to the steps of prompts, which are not counted. Rows are greedy,
since drawing is quicker where most tokens are forbidden, which would hide what masks cost; with a
--temperature they go through more of their schemas.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import median

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()

from tokenizers import Tokenizer as Words  # noqa: E402
from tokenizers import decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from pagedrun.paged.bench.runs.model import BenchModel  # noqa: E402
from pagedrun.paged.bench.runs.op_timer import OpTimer  # noqa: E402
from pagedrun.paged.bench.runs.step_log import Step, StepLog  # noqa: E402
from pagedrun.paged.engine import Engine  # noqa: E402
from pagedrun.paged.execution.devices.device_choice import choose_device  # noqa: E402
from pagedrun.paged.text.tokenizer import Tokenizer  # noqa: E402
from pagedrun.paged.values.request import Request  # noqa: E402
from pagedrun.paged.values.sampling.sampling_params import SamplingParams  # noqa: E402

PROMPT_TOKENS = 16
LETTERS = "etaoinshrdlucmfw"
SIGNS = '",:{}[]0123456789-.Ġ'
END = "<end>"


class WordedModel(BenchModel):
    """A model of a named shape whose tokens are the bytes, and random words made of them."""

    def tokenizer(self) -> Tokenizer:
        """Return words for the whole vocabulary, a tenth of them with signs of JSON."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {letter: place for place, letter in enumerate(alphabet)}
        rng = random.Random(0)
        while len(vocab) < self.config.vocab_size - 1:
            letters = LETTERS + SIGNS if rng.random() < 0.1 else LETTERS
            word = rng.choice(["", "Ġ"]) + "".join(rng.choices(letters, k=rng.randint(2, 9)))
            vocab.setdefault(word, len(vocab))
        vocab[END] = len(vocab)
        words = Words(models.BPE(vocab=vocab, merges=[]))
        words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        words.decoder = decoders.ByteLevel()
        return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END), None)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run of all rows took: the steps that only decode, and tokens a second of all."""

    steps: Seq[Step]
    tokens_per_s: float

    @classmethod
    def of(cls, engine: Engine, timer: OpTimer, requests: Seq[Request]) -> "Turn":
        """Run the requests."""
        log = StepLog(timer)
        for completion in engine.start(requests, log):
            assert completion.error is None, completion.error
        seconds = sum(step.seconds for step in log.steps)
        tokens = sum(step.generated_tokens for step in log.steps)
        steps = [s for s in log.steps if s.only_decodes and s.generated_tokens == len(requests)]
        return cls(steps, tokens / seconds)

    @property
    def step_ms(self) -> float:
        """The median decode step of all rows, in milliseconds."""
        return 1000 * median(step.seconds for step in self.steps)

    def ops_ms(self) -> dict[str, float]:
        """Return the milliseconds of each op in an average step, and of what is none."""
        ops: defaultdict[str, float] = defaultdict(float)
        for step in self.steps:
            for name, seconds in step.op_seconds.items():
                ops[name] += 1000 * seconds / len(self.steps)
            none = step.seconds - sum(step.op_seconds.values())
            ops["between ops"] += 1000 * none / len(self.steps)
        return ops


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


def requests_of(asked: argparse.Namespace, vocab_size: int, *, masked: bool) -> list[Request]:
    """Return rows of random tokens, with a schema each or without."""
    rng = random.Random(1)
    made = []
    for row in range(asked.rows):
        text = schema(0 if asked.one_schema else row) if masked else None
        params = SamplingParams(
            max_tokens=asked.tokens,
            temperature=asked.temperature,
            seed=row,
            ignore_eos=True,
            json_schema=text,
        )
        prompt = tuple(rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS))
        made.append(Request(row, prompt, params))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--one-schema", action="store_true")
    asked = parser.parse_args()
    timer = OpTimer(choose_device("auto", "auto").kernels)
    engine = WordedModel.from_shape(asked.shape, asked.layers).engine(
        timer.kernels, dtype=asked.dtype, max_num_seqs=asked.rows, jump_ahead=False
    )
    engine.warm_up()
    vocab_size = engine.loaded.config.vocab_size
    free, masked = (requests_of(asked, vocab_size, masked=each) for each in (False, True))
    ways = {"free": free, "masked": masked, "jumping": masked}
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for number in range(-1, asked.turns):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            engine.loaded.grammar_mask.jump_ahead = name == "jumping"
            turn = Turn.of(engine, timer, ways[name])
            if number >= 0:  # the turn before compiles the schemas, and touches each kernel
                turns[name].append(turn)
    added = [
        with_it.step_ms / without.step_ms - 1
        for without, with_it in zip(turns["free"], turns["masked"], strict=True)
    ]
    for name in ("free", "masked"):
        print(f"{name:8} {median(each.step_ms for each in turns[name]):8.2f} ms a decode step")
    print(f"masks add {median(added):.1%} to a step ({min(added):.1%} to {max(added):.1%})")
    for name in ("masked", "jumping"):
        print(f"{name:8} {median(each.tokens_per_s for each in turns[name]):8.1f} tokens/s")
    before, after = (turns[name][-1].ops_ms() for name in ("free", "masked"))
    print(f"\n{'ms of a step, last turn':24} {'free':>8} {'masked':>8}")
    for name in sorted(after, key=lambda each: before.get(each, 0.0) - after[each]):
        print(f"{name:24} {before.get(name, 0.0):8.2f} {after[name]:8.2f}")


if __name__ == "__main__":
    main()
