"""What beams cost beside as many samples of the same rows: time of a step, blocks, copies.

    python benchmarks/beams.py [--shape qwen3-0.6b] [--layers N] [--rows 8] [--width 8]
                               [--prompt 500] [--output 64] [--block-size 16] [--turns 3]

Runs the same rows on one engine with random weights, in turns: `--beam-width W`, and `--n W` at
temperature 1. Each row has a prompt of its own, and no answer ends early, so that both have
rows x W sequences in every step behind the prompts. Printed are medians over the turns: of the time
from one such step to the next, of the whole run, of the blocks held at the peak, and of the forks
and the blocks copied; and the median of the turns' ratios, beams over samples.
"""

import argparse
import random
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()

from pagedrun.paged.bench.runs.model import BenchModel  # noqa: E402
from pagedrun.paged.engine import Engine  # noqa: E402
from pagedrun.paged.report.record.timeline import StepRecord  # noqa: E402
from pagedrun.paged.values.request import Request  # noqa: E402
from pagedrun.paged.values.sampling.sampling_params import SamplingParams  # noqa: E402


class Figures(NamedTuple):
    """Of one run; `step_ms` of the steps in which every sequence gets a token and none begins."""

    step_ms: float
    run_s: float
    peak_blocks: int
    forks: int
    block_copies: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--layers", type=int, help="cut the model, and its vocabulary with it")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=500, help="tokens")
    parser.add_argument("--output", type=int, default=64, help="tokens")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    num_sequences = given.rows * given.width
    model = BenchModel.from_shape(given.shape, given.layers)
    engine = model.engine(
        block_size=given.block_size,
        max_num_seqs=num_sequences,
        max_model_len=given.prompt + given.output,
    )
    engine.warm_up()
    end = {"max_tokens": given.output, "ignore_eos": True}
    asked = {
        "beams": SamplingParams(beam_width=given.width, n=given.width, **end),
        "samples": SamplingParams(n=given.width, temperature=1.0, seed=0, **end),
    }
    prompts = list(random_prompts(given.rows, given.prompt, engine.loaded.config.vocab_size))
    for params in asked.values():  # what only the first run of a process does
        measure(engine, prompts[:1], params, given.width)
    turns = [
        {name: measure(engine, prompts, params, num_sequences) for name, params in asked.items()}
        for _ in range(given.turns)
    ]
    print(f"{'':14}{'beams':>12}{'samples':>12}{'ratio':>8}")
    for place, name in enumerate(Figures._fields):
        beams, samples = ([turn[side][place] for turn in turns] for side in asked)
        ratios = [one / other for one, other in zip(beams, samples, strict=True) if other]
        ratio = f"{median(ratios):8.2f}" if ratios else f"{'-':>8}"
        print(f"{name:14}{median(beams):12,.2f}{median(samples):12,.2f}{ratio}")


def random_prompts(count: int, num_tokens: int, vocab_size: int) -> Iterator[tuple[int, ...]]:
    """Yield prompts that have nothing in common."""
    pick = random.Random(0)
    for _ in range(count):
        yield tuple(pick.randrange(vocab_size) for _ in range(num_tokens))


def measure(
    engine: Engine, prompts: list[tuple[int, ...]], params: SamplingParams, num_sequences: int
) -> Figures:
    """Run the prompts, of which each comes to a part of `num_sequences`; return the figures."""
    records: list[StepRecord] = []
    run = engine.start(
        [Request(index, prompt, params) for index, prompt in enumerate(prompts)], records.append
    )
    for completion in run:
        assert completion.error is None, completion.error
    gaps = [
        after.t - before.t
        for before, after in pairwise(records)
        if before.running == after.running == num_sequences
    ]
    report = run.report()
    return Figures(
        step_ms=1e3 * median(gaps),
        run_s=report["time"]["run_s"],
        peak_blocks=report["kv"]["peak_blocks"],
        forks=report["copy_on_write"]["forks"],
        block_copies=report["copy_on_write"]["block_copies"],
    )


if __name__ == "__main__":
    main()
