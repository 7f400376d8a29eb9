"""Drafts against none: seconds and tokens a step, for kinds of work that repeat text or do not.

    python benchmarks/speculation.py MODEL [--drafts auto] [--sequences 1 4] [--turns 3]
    python benchmarks/speculation.py MODEL --chances 0 0.3 0.6 0.9 [--sequences 1 4 16]

Each kind is some rows of one template, for a chat model in ChatML, greedy; `--sequences` of them
run at once. Runs with and without drafts take turns that change places, on one loaded model; the
least seconds of each count, and their tokens must be equal. The skewed kind has one long answer
among short ones; the last one has the answers to a slightly different template as drafts, as
`--from` gives them.

With `--chances` drafts are the answers themselves, each token of which is right with a chance, and
`auto` is compared with numbers of drafts that are fixed. Prints Markdown.
"""

import argparse
import json
import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before torch is imported

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

NAMES = ("Maria Keller", "John Smith", "Aiko Tanaka", "Peter Novak")
PLACES = (
    ("Hauptstrasse 12", "Berlin"),
    ("Mill Lane 4", "Leeds"),
    ("Rue Cler 30", "Paris"),
    ("Via Roma 8", "Turin"),
)
TEXTS = [
    f"Invoice {4471 + 13 * number} was sent to {name}, {street}, {city}, on {number + 3} May 2024. "
    f"The total is {250 + 75 * number}.00 EUR and is due within 30 days. Contact: "
    f"{name.split()[0].lower()}@example.com."
    for number, (name, (street, city)) in enumerate(
        (name, place) for place in PLACES for name in NAMES
    )
]
THINGS = ("a fox", "the sea", "a lost key", "rain", "two friends", "a mountain", "bread", "a train")
TOPICS = [*THINGS, *(f"{each} in winter" for each in THINGS)]
REWRITE = "Repeat the following text exactly, but replace EUR by USD:\n{}"
EXTRACT = "Extract name, address, date, total and email as JSON from this text:\n{}"
EDITED = "Extract name, address, date, total and email as JSON from the following text:\n{}"
BEGUN = '```json\n{\n  "name":'
KINDS = {
    "rewriting": (REWRITE, "", TEXTS),
    "extraction to JSON": (EXTRACT, BEGUN, TEXTS),
    "summary with quotes": ("Summarize this text and quote its main sentence:\n{}", "", TEXTS),
    "free chat": ("Tell me a short story about {}.", "", TOPICS),
}
FIELDS = ("name", "address", "date", "total", "email")
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 60} for name in FIELDS},
        "required": FIELDS,
        "additionalProperties": False,
    }
)
TOKENS, SKEWED_TOKENS = 120, 600
FIXED = ("1", "3", "7")


def requests(
    tokenizer: Tokenizer, template: str, begun: str, parts: Seq[str], max_tokens: int = TOKENS
) -> list[Request]:
    """Return the rows of a kind."""
    texts = [
        f"<|im_start|>user\n{template.format(part)}<|im_end|>\n<|im_start|>assistant\n{begun}"
        for part in parts
    ]
    prompts = tokenizer.encode_batch(texts, False)
    return [  # limits differ, since answers of one length would end together without drafts only
        Request(index, tuple(prompt), SamplingParams(max_tokens=max_tokens - 8 * (index * 5 % 7)))
        for index, prompt in enumerate(prompts)
    ]


def timed(engine: Engine, rows: list[Request]) -> tuple[float, list[Any], Any]:
    """Return seconds, tokens in order, and the report."""
    run = engine.start(rows)
    done = sorted(run, key=lambda each: each.request.index)
    tokens = [each.outputs[0].token_ids for each in done]
    return run.statistics.run_s, tokens, run.report()


def seconds_of(
    engines: Seq[Engine], rows: list[Request], turns: int
) -> tuple[list[float], list[Any]]:
    """Return the least seconds of each engine, and the last reports; a few rows are run before."""
    seconds, reports = [inf] * len(engines), [None] * len(engines)
    answers = None
    for engine in engines:
        timed(engine, rows[:2])
    for turn in range(turns):
        order = range(len(engines))
        for index in order if turn % 2 == 0 else reversed(order):
            taken, tokens, reports[index] = timed(engines[index], rows)
            seconds[index] = min(seconds[index], taken)
            answers = answers or tokens
            assert tokens == answers, "drafts change a byte"
    return seconds, reports


def compare(name: str, count: int, engines: Seq[Engine], rows: list[Request], turns: int) -> None:
    """Print the line of a kind of work; engines: without drafts, and with."""
    (off, on), (_, report) = seconds_of(engines, rows, turns)
    figures = report["speculation"]
    print(
        f"| {name} | {count} | {len(rows)} | {off:.2f} | {on:.2f} | {off / on:.2f} "
        f"| {figures['proposed']} | {figures['accepted']} | {figures['tokens_per_step']:.2f} |",
        flush=True,
    )


def compare_kinds(tokenizer: Tokenizer, engine: Engine, asked: argparse.Namespace) -> None:
    """Print the table of kinds of work."""
    print("| work | at once | rows | off, s | on, s | ratio | proposed | right | tokens a step |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: | --: |")
    for count in asked.sequences:
        engines = [
            engine.reconfigured(speculate=each, max_num_seqs=count)
            for each in ("off", asked.drafts)
        ]
        num_rows = min(max(4 * count, 6), len(TEXTS))
        for name, (template, begun, parts) in KINDS.items():
            rows = requests(tokenizer, template, begun, parts[:num_rows])
            compare(name, count, engines, rows, asked.turns)
        rows = requests(tokenizer, EXTRACT, "", TEXTS[:num_rows])
        rows = [replace(row, params=replace(row.params, json_schema=SCHEMA)) for row in rows]
        compare("extraction by a schema", count, engines, rows, asked.turns)
        _, earlier, _ = timed(engines[0], requests(tokenizer, EXTRACT, BEGUN, TEXTS[:num_rows]))
        drafted = zip(requests(tokenizer, EDITED, BEGUN, TEXTS[:num_rows]), earlier, strict=True)
        rows = [replace(row, earlier_token_ids=tokens) for row, tokens in drafted]
        compare("extraction, edited template", count, engines, rows, asked.turns)
    engines = [
        engine.reconfigured(speculate=each, max_num_seqs=16) for each in ("off", asked.drafts)
    ]
    template = EXTRACT.replace("this text", "each invoice of this text, one after the other,")
    parts = [*TEXTS[:15], "\n".join(TEXTS[:8])]
    rows = requests(tokenizer, template, BEGUN, parts, SKEWED_TOKENS)
    compare("extraction, one long answer", 16, engines, rows, asked.turns)


def compare_chances(tokenizer: Tokenizer, engine: Engine, asked: argparse.Namespace) -> None:
    """Print the table of chances: speed as a multiple of that without drafts."""
    print(f"| at once | chance | auto | {' | '.join(FIXED)} | auto of the best |")
    print(f"| --: | --: | --: | {'--: | ' * len(FIXED)}--: |")
    generator = random.Random(1)
    for count in asked.sequences:
        kinds = ("off", asked.drafts, *FIXED)
        engines = [engine.reconfigured(speculate=each, max_num_seqs=count) for each in kinds]
        parts = [
            TOPICS[index % len(TOPICS)] + "!" * (index // len(TOPICS))
            for index in range(max(count, 6))
        ]
        plain = requests(tokenizer, *KINDS["free chat"][:2], parts)
        plain = [replace(row, params=replace(row.params, ignore_eos=True)) for row in plain]
        _, answers, _ = timed(engines[0], plain)
        for chance in asked.chances:
            rows = [
                replace(
                    row,
                    earlier_token_ids=tuple(
                        token if generator.random() < chance else token ^ 1 for token in answer
                    ),
                )
                for row, answer in zip(plain, answers, strict=True)
            ]
            (off, auto, *fixed), _ = seconds_of(engines, rows, asked.turns)
            ratios = " | ".join(f"{off / each:.2f}" for each in fixed)
            best = min(off, *fixed)
            print(
                f"| {count} | {chance} | {off / auto:.2f} | {ratios} | {best / auto:.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--drafts", default="auto")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--chances", type=float, nargs="+", default=[])
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    config = EngineConfig.fitting(model=asked.model, device="cpu")
    tokenizer = Tokenizer.from_folder(asked.model)
    loaded = LoadedModel.load(config, describe_model(asked.model, config.model_impl), tokenizer)
    engine = Engine(config, loaded)
    engine.warm_up()
    (compare_chances if asked.chances else compare_kinds)(tokenizer, engine, asked)


if __name__ == "__main__":
    main()
