"""Drafts against none: seconds and tokens a step, for kinds of work that repeat text or do not.

    python benchmarks/speculation.py MODEL [--drafts auto] [--sequences 1 4] [--turns 3]

Each kind is eight rows of one template, for a chat model in ChatML, greedy, of up to 120 tokens;
`--sequences` of them run at once. Runs with and without drafts take turns that change places, on
one loaded model; their tokens must be equal. The last kind has the answers to a slightly different
template as drafts, as `--from` gives them. Prints Markdown.
"""

import argparse
from dataclasses import replace
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
PLACES = (("Hauptstrasse 12", "Berlin"), ("Mill Lane 4", "Leeds"))
TEXTS = [
    f"Invoice {4471 + 13 * number} was sent to {name}, {street}, {city}, on {number + 3} May 2024. "
    f"The total is {250 + 75 * number}.00 EUR and is due within 30 days. Contact: "
    f"{name.split()[0].lower()}@example.com."
    for number, (name, (street, city)) in enumerate(
        (name, place) for place in PLACES for name in NAMES
    )
]
TOPICS = ("a fox", "the sea", "a lost key", "rain", "two friends", "a mountain", "bread", "a train")
KINDS = {
    "rewriting": ("Repeat the following text exactly, but replace EUR by USD:\n{}", "", TEXTS),
    "extraction to JSON": (
        "Extract name, address, date, total and email as JSON from this text:\n{}",
        '```json\n{\n  "name":',
        TEXTS,
    ),
    "summary with quotes": ("Summarize this text and quote its main sentence:\n{}", "", TEXTS),
    "free chat": ("Tell me a short story about {}.", "", TOPICS),
}
EDITED = "Extract name, address, date, total and email as JSON from the following text:\n{}"
TOKENS = 120


def requests(tokenizer: Tokenizer, template: str, begun: str, parts: Any) -> list[Request]:
    """Return the rows of a kind."""
    texts = [
        f"<|im_start|>user\n{template.format(part)}<|im_end|>\n<|im_start|>assistant\n{begun}"
        for part in parts
    ]
    params = SamplingParams(max_tokens=TOKENS)
    prompts = tokenizer.encode_batch(texts, False)
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]


def timed(engine: Engine, rows: list[Request]) -> tuple[float, list[Any], Any]:
    """Return seconds, tokens in order, and the report."""
    run = engine.start(rows)
    done = sorted(run, key=lambda each: each.request.index)
    tokens = [each.outputs[0].token_ids for each in done]
    return run.statistics.run_s, tokens, run.report()


def compare(
    name: str, count: int, off: Engine, on: Engine, rows: list[Request], turns: int
) -> None:
    """Print the line of a kind of work."""
    seconds = {id(off): 0.0, id(on): 0.0}
    figures: Any = None
    for turn in range(turns):
        found = []
        for engine in (off, on) if turn % 2 == 0 else (on, off):
            taken, tokens, report = timed(engine, rows)
            seconds[id(engine)] += taken
            found.append(tokens)
            figures = report.get("speculation", figures)
        assert found[0] == found[1], "drafts change a byte"
    without, with_drafts = (each / turns for each in seconds.values())
    print(
        f"| {name} | {count} | {without:.2f} | {with_drafts:.2f} | {without / with_drafts:.2f} "
        f"| {figures['proposed']} | {figures['accepted']} | {figures['tokens_per_step']:.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--drafts", default="auto")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    config = EngineConfig.fitting(model=asked.model, device="cpu")
    tokenizer = Tokenizer.from_folder(asked.model)
    loaded = LoadedModel.load(config, describe_model(asked.model, config.model_impl), tokenizer)
    engine = Engine(config, loaded)
    engine.warm_up()
    print("| work | at once | off, s | on, s | ratio | proposed | accepted | tokens a step |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: |")
    for count in asked.sequences:
        off = engine.reconfigured(speculate="off", max_num_seqs=count)
        on = engine.reconfigured(speculate=asked.drafts, max_num_seqs=count)
        for name, kind in KINDS.items():
            compare(name, count, off, on, requests(tokenizer, *kind), asked.turns)
        _, begun, parts = KINDS["extraction to JSON"]
        rows = requests(tokenizer, EDITED, begun, parts)
        _, earlier, _ = timed(off, requests(tokenizer, *KINDS["extraction to JSON"]))
        drafted = zip(rows, earlier, strict=True)
        rows = [replace(row, earlier_token_ids=tokens) for row, tokens in drafted]
        compare("extraction, edited template", count, off, on, rows, asked.turns)


if __name__ == "__main__":
    main()
