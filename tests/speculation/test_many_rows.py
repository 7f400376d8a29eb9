"""Memory of drafters over many rows: bounded, whatever their number."""

import random
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.planning.simulation import costless_scheduler
from pagedrun.paged.scheduling.scheduler import SchedulerLimits
from pagedrun.paged.speculation import speculation as limits
from pagedrun.paged.speculation.replay import Replay
from pagedrun.paged.speculation.speculation import Speculation
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

MOST_GROWTH = 64 << 20  # bytes, behind the first tenth of the rows
NUM_ANSWERS, NUM_PROMPT_TOKENS = 97, 12


class SomeAnswers(Mapping[int, list[list[int]]]):
    """One of a hundred short answers for each row, made when it is asked for."""

    def __init__(self, num_rows: int) -> None:
        pick = random.Random(5)
        self._num_rows = num_rows
        self._answers = [pick.choices(range(500), k=pick.randint(3, 8)) for _ in range(NUM_ANSWERS)]

    def __getitem__(self, index: int) -> list[list[int]]:
        return [self._answers[index * 31 % NUM_ANSWERS]]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._num_rows))

    def __len__(self) -> int:
        return self._num_rows


def rows(answers: SomeAnswers, resident: list[int]) -> Iterator[PlannedRequest]:
    """Yield a row of a group of its own for each answer, with a prompt unlike all others.

    resident: receives the bytes of the process behind each tenth of the rows.
    """
    for index in answers:
        if index and index % (len(answers) // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append(pages * resource.getpagesize())
        prompt = tuple((index >> shift) % 256 for shift in (0, 8, 16)) + tuple(
            range(NUM_PROMPT_TOKENS - 3)
        )
        [answer] = answers[index]
        params = SamplingParams(max_tokens=len(answer), ignore_eos=True)
        yield PlannedRequest(Request(index, prompt, params), index)


@pytest.mark.parametrize(
    ("num_rows", "other_tokens"),
    [
        (4_000, 1 << 12),
        pytest.param(
            1_000_000, limits.OTHER_TOKENS, marks=[pytest.mark.long, pytest.mark.timeout(3600)]
        ),
    ],
)
def test_the_memory_of_drafters_is_bounded(
    num_rows: int, other_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers have more tokens than the index of other answers, and all prompts more than
    those of the sequences at once."""
    monkeypatch.setattr(limits, "OTHER_TOKENS", other_tokens)
    most_own = 64 * (NUM_PROMPT_TOKENS + 8)
    answers = SomeAnswers(num_rows)
    config = EngineConfig.fitting(model=Path("none"), device="cpu", max_num_seqs=64, speculate="2")
    shapes = [PoolShape(1, None, 1 << 12, 4)]
    scheduler = costless_scheduler(config, SchedulerLimits.of(config), shapes)
    scheduler.residency.row_stride = num_rows  # the log of blocks has a bound of its own
    speculation = Speculation.of("2", scheduler, lambda row, sample: None, streams=False)
    assert speculation is not None
    replay = Replay(answers, scheduler, speculation, lambda num_rows: 1.0)
    resident: list[int] = []
    figures = replay.run(rows(answers, resident), num_rows)
    print(f"{num_rows:,} rows: {figures}, MiB {[each >> 20 for each in resident]}")
    assert figures["accepted"] > num_rows / 100
    assert other_tokens / 2 < figures["indexed_tokens"] <= most_own + other_tokens
    assert resident[-1] - resident[0] < MOST_GROWTH
