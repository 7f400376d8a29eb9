"""Drafts against none: seconds and tokens a step, for texts that repeat themselves or do not.

    python benchmarks/speculation.py MODEL [--drafts 4] [--sequences 1] [--turns 3]

Each case is one prompt of a chat model in ChatML, answered by as many sequences with seeds of their
own (one: greedy), 120 tokens each. Runs with and without drafts take turns that change places, on
one loaded model; their tokens must be equal. Prints Markdown.
"""

import argparse
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

TEXT = (
    "Invoice 4471 was sent to Maria Keller, Hauptstrasse 12, 10115 Berlin, on 3 May 2024. The "
    "total is 1,250.00 EUR and is due within 30 days. Contact: billing@example.com."
)
REPEAT = f"Repeat the following text exactly, but replace Berlin by Hamburg:\n{TEXT}"
EXTRACT = f"Extract name, address, date, total and email as JSON from this text:\n{TEXT}"
CASES = {
    "repeats its prompt": (REPEAT, ""),
    "extraction to JSON": (EXTRACT, '```json\n{\n  "name":'),
    "story": ("Tell me a story about a fox and a river.", ""),
}
TOKENS = 120


def requests(tokenizer: Tokenizer, question: str, begun: str, count: int) -> list[Request]:
    """Return the requests of a case."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{begun}"
    [prompt] = tokenizer.encode_batch([text], False)
    temperature = 0.0 if count == 1 else 0.7
    return [
        Request(
            seed,
            tuple(prompt),
            SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=seed, ignore_eos=True),
        )
        for seed in range(count)
    ]


def timed(engine: Engine, rows: list[Request]) -> tuple[float, list[Any], Any]:
    """Return seconds, tokens in order, and the report."""
    run = engine.start(rows)
    done = sorted(run, key=lambda each: each.request.index)
    tokens = [each.outputs[0].token_ids for each in done]
    return run.statistics.run_s, tokens, run.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    config = EngineConfig.fitting(model=asked.model, device="cpu")
    tokenizer = Tokenizer.from_folder(asked.model)
    loaded = LoadedModel.load(config, describe_model(asked.model, config.model_impl), tokenizer)
    off = Engine(config, loaded)
    on = off.reconfigured(speculate=str(asked.drafts))
    for engine in (off, on):
        engine.warm_up()
    print("| text | off, s | on, s | ratio | proposed | accepted | tokens a step |")
    print("| :-- | --: | --: | --: | --: | --: | --: |")
    for name, (question, begun) in CASES.items():
        rows = requests(tokenizer, question, begun, asked.sequences)
        seconds = {id(off): 0.0, id(on): 0.0}
        figures: Any = None
        for turn in range(asked.turns):
            found = []
            for engine in (off, on) if turn % 2 == 0 else (on, off):
                taken, tokens, report = timed(engine, rows)
                seconds[id(engine)] += taken
                found.append(tokens)
                figures = report.get("speculation", figures)
            assert found[0] == found[1], "drafts change a byte"
        without, with_drafts = (each / asked.turns for each in seconds.values())
        print(
            f"| {name} | {without:.2f} | {with_drafts:.2f} | {without / with_drafts:.2f} "
            f"| {figures['proposed']} | {figures['accepted']} "
            f"| {figures['tokens_per_step']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
