"""Numbers of drafts that `auto` chooses against fixed ones, in runs without a model.

    python benchmarks/draft_lengths.py [--cost 1:1 4:1.08 8:1.8 ...] [--sequences 1 2 4 8 16 64]
        [--chances 0.01 0.3 0.6 0.9] [--rows 8] [--tokens 120]

The scheduler, the drafters, the choice and the verification are those of a run. A row's drafts are
its answer, each token of which is right with a chance, as `--from` gives them: after a wrong one
there are none until two tokens in a row were right. A step takes the time that `--cost` gives to
its number of rows, on lines between these and beyond, within 5 %; the first two steps of a number
of rows take three times as long, since a run records them. `--rows` are computed for each sequence
that runs at once.

Prints Markdown: speed as a multiple of that without drafts, and `auto`'s as a part of the best.
"""

import argparse
import random
from functools import partial
from pathlib import Path

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before torch is imported

import numpy as np

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.planning.simulation import costless_scheduler
from pagedrun.paged.scheduling.scheduler import SchedulerLimits
from pagedrun.paged.speculation.replay import Replay
from pagedrun.paged.speculation.speculation import Speculation
from pagedrun.paged.values.engine_config import AUTO, EngineConfig
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

FIXED = ("1", "2", "3", "5", "7", "11", "15")
PROMPT_TOKENS, VOCABULARY, NOISE = 64, 30_000, 0.05
# Qwen3-0.6B's shape in bfloat16 on an Ice Lake (benchmarks/results/2026-11-25-speculation.md).
COSTS = ["1:1", "4:1.08", "8:1.8", "16:2.6", "32:3.2", "64:5"]


class StepTimes:
    """Time of a step by its number of rows, with some noise."""

    def __init__(self, given: dict[int, float], seed: int) -> None:
        self._rows, self._times = list(given), list(given.values())
        self._generator = random.Random(seed)

    def __call__(self, num_rows: int) -> float:
        """Return the time of the next step."""
        expected = float(np.interp(num_rows, self._rows, self._times))
        if num_rows > self._rows[-1]:
            slope = (self._times[-1] - self._times[-2]) / (self._rows[-1] - self._rows[-2])
            expected += slope * (num_rows - self._rows[-1])
        return expected * self._generator.uniform(1 - NOISE, 1 + NOISE)


def simulated_time(
    speculate: str,
    *,
    given: dict[int, float],
    chance: float,
    max_num_seqs: int,
    num_rows: int,
    num_tokens: int,
) -> float:
    """Return the time of a run; chance: of each token of a draft; 0 for none."""
    config = EngineConfig.fitting(
        model=Path("none"), device="cpu", max_num_seqs=max_num_seqs, speculate=speculate
    )
    shapes = [PoolShape(1, None, 1 << 16, 4)]
    scheduler = costless_scheduler(config, SchedulerLimits.of(config), shapes)
    generator = random.Random(7)
    answers, planned = {}, []
    for index in range(num_rows):
        count = num_tokens - num_tokens // 16 * (index * 5 % 7)  # not all end together
        answer = [generator.randrange(VOCABULARY) for _ in range(count)]
        answers[index] = [answer]
        drawn = answer if chance else []
        earlier = [each ^ (generator.random() >= chance) for each in drawn]
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        prompt = tuple(generator.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS))
        request = Request(index, prompt, params, earlier_token_ids=tuple(earlier))
        planned.append(PlannedRequest(request, index))
    speculation = Speculation.of(speculate, scheduler, lambda row, sample: None, streams=False)
    assert speculation is not None, "it was not switched off"
    replay = Replay(answers, scheduler, speculation, StepTimes(given, 3))
    replay.run(planned, num_rows)
    return replay.seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cost", nargs="+", default=COSTS)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64])
    parser.add_argument("--chances", type=float, nargs="+", default=[0.01, 0.3, 0.6, 0.9])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=120)
    asked = parser.parse_args()
    pairs = (each.split(":") for each in asked.cost)
    given = {int(rows): float(time) for rows, time in pairs}
    print(f"| at once | chance | auto | {' | '.join(FIXED)} | auto of the best |")
    print("| --: " * (len(FIXED) + 4) + "|")
    for count in asked.sequences:
        time_of = partial(
            simulated_time,
            given=given,
            max_num_seqs=count,
            num_rows=asked.rows * count,
            num_tokens=asked.tokens,
        )
        plain = time_of(AUTO, chance=0.0)
        for chance in asked.chances:
            auto, *fixed = (time_of(each, chance=chance) for each in (AUTO, *FIXED))
            ratios = " | ".join(f"{plain / each:.2f}" for each in (auto, *fixed))
            print(
                f"| {count} | {chance} | {ratios} | {min(plain, *fixed) / auto:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
