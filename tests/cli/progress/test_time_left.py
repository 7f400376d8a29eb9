"""How long a run still takes, as an interval: of runs whose truth is known."""

import random
from collections.abc import Callable, Iterator

import pytest

from pagedrun.cli.progress.run_figures import SpeedLog, TimeLeft
from pagedrun.cli.terminal.units import show_span
from pagedrun.paged.job.progress import AnswerLengths
from pagedrun.paged.metrics.timeline import StepRecord

STEP_S = 0.1
MAX_TOKENS = 128


def test_a_run_of_which_nothing_was_told_for_a_while_has_a_speed() -> None:
    log = SpeedLog()
    for step, generated in enumerate([0, 0, 10, 10, 30, 30, 60]):
        log.note(StepRecord(float(step), step // 2, 1, 0, 1, 1, 0, 0, 1, 0, 9, 0, 0, generated, 0))
    assert 0 < log.spread < 5


@pytest.mark.parametrize("num_steps", [4, 400])
def test_prompts_take_time_by_their_tokens(num_steps: int) -> None:
    lengths = random.Random(3).choices(range(1, 90), k=num_steps)
    for step in range(1, num_steps):
        done, total = sum(lengths[:step]), sum(lengths)
        counts = (0, step, num_steps, total, 0, 0, 0, total - done, total)
        left = TimeLeft.of_prompts(
            done * STEP_S, StepRecord(done * STEP_S, step, 0, 0, 0, 0, 0, 0, *counts)
        )
        assert left is not None
        assert left.low_s < left.guess_s < left.high_s
        assert left.guess_s == pytest.approx((total - done) * STEP_S)


def moments(answers: list[int], seats: int) -> Iterator[tuple[StepRecord, AnswerLengths]]:
    """Run answers of these lengths, so many at a time, a token each a step; give each step."""
    lengths, waiting, running = AnswerLengths(), list(reversed(answers)), list[list[int]]()
    lengths.allow(MAX_TOKENS)
    step = generated = 0
    while waiting or running:
        while waiting and len(running) < seats:
            running.append([0, waiting.pop()])
        step += 1
        generated += len(running)
        for row in running:
            row[0] += 1
        for row in [each for each in running if each[0] == each[1]]:
            running.remove(row)
            lengths.note(row[1])
        counts = (lengths.count, len(answers), 0, 0, generated, 0)
        record = StepRecord(step * STEP_S, step, len(running), len(waiting), 1, 1, 0, 0, 1, *counts)
        yield record, lengths


def share_that_holds(answers: list[int], seats: int) -> float:
    """Return at how many of the moments at which something is said the truth lies within."""
    total_s = sum(1 for _ in moments(answers, seats)) * STEP_S
    held = []
    for record, lengths in moments(answers, seats):
        left = TimeLeft.of(record.t, STEP_S, record, lengths)
        if left is not None:
            held.append(left.low_s <= total_s - record.t <= left.high_s)
    assert held
    return sum(held) / len(held)


def lengths_of(kind: str, count: int, seed: int = 4) -> list[int]:
    rng = random.Random(seed)
    drawn: dict[str, Callable[[], int]] = {
        "equal": lambda: 20,
        "any": lambda: rng.randrange(1, 60),
        "memoryless": lambda: min(1 + int(rng.expovariate(1 / 30)), MAX_TOKENS),
        "two kinds": lambda: rng.choice([4, 4, 4, 80]),
    }
    return [drawn[kind]() for _ in range(count)]


@pytest.mark.parametrize("seats", [4, 32])
@pytest.mark.parametrize("kind", ["equal", "any", "memoryless", "two kinds"])
def test_the_guess_is_near_the_truth(kind: str, seats: int) -> None:
    """Half of the guesses are off by a fifth of the time left at most, nine in ten by half of it;
    the last twentieth of a run left out, in which a second is much of it."""
    answers = lengths_of(kind, 1000)
    total_s = sum(1 for _ in moments(answers, seats)) * STEP_S
    errors = []
    for record, lengths in moments(answers, seats):
        left, truth_s = TimeLeft.of(record.t, STEP_S, record, lengths), total_s - record.t
        if left is not None and truth_s > 0.05 * total_s:
            assert left.low_s <= left.guess_s <= left.high_s
            errors.append(abs(left.guess_s - truth_s) / truth_s)
    errors.sort()
    assert errors[len(errors) // 2] <= 0.2
    assert errors[len(errors) * 9 // 10] <= 0.5


@pytest.mark.parametrize("seats", [4, 32])
@pytest.mark.parametrize("kind", ["equal", "any", "memoryless", "two kinds"])
def test_the_interval_holds_the_truth(kind: str, seats: int) -> None:
    assert share_that_holds(lengths_of(kind, 200), seats) >= 0.85


def test_the_interval_is_narrow_once_there_is_something_to_learn_from() -> None:
    """From nothing to for ever would hold any truth."""
    answers = lengths_of("any", 2000)
    for record, lengths in moments(answers, 16):
        left = TimeLeft.of(record.t, STEP_S, record, lengths)
        if record.finished > 400 and record.waiting > 400:
            assert left is not None
            assert left.high_s < 2.2 * left.low_s


def run_at(speeds: list[float]) -> SpeedLog:
    """Run ten steps a second at speed 1, for a second at each of the speeds."""
    log, at_s = SpeedLog(), 0.0
    for step in range(10 * len(speeds)):
        at_s += 0.1 / speeds[step // 10]
        log.note(StepRecord(at_s, step + 1, 1, 1, 1, 1, 0, 0, 1, 0, 9, 0, 0, 8 * step, 0))
    return log


def test_a_run_that_others_slow_down_is_not_sure_of_its_speed() -> None:
    steady, slowed = run_at([1.0] * 12).spread, run_at([1.0] * 10 + [0.25] * 2).spread
    assert steady < 0.1
    assert slowed > 0.3
    assert run_at([1.0]).spread == 0.0  # too short to tell
    answers = lengths_of("any", 100)
    record, lengths = list(moments(answers, 8))[len(answers)]
    sure = TimeLeft.of(record.t, STEP_S, record, lengths)
    unsure = TimeLeft.of(record.t, STEP_S, record, lengths, slowed)
    assert sure is not None
    assert unsure is not None
    assert unsure.low_s < sure.low_s < sure.high_s < unsure.high_s


def test_nothing_is_said_before_a_row_is_back() -> None:
    record, lengths = next(moments([5, 5], 2))
    assert TimeLeft.of(record.t, STEP_S, record, lengths) is None


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.2, 0.7, "0 s to 1 s"),
        (4.0, 4.0, "4 s"),
        (33, 58, "30 s to 1 min"),
        (50, 70, "50 s to 2 min"),
        (200, 280, "3 min to 5 min"),
        (4200, 6000, "1 h 10 min to 1 h 40 min"),
        (7100, 90_000, "1 h 50 min to 25 h"),
    ],
)
def test_an_interval_as_people_read_it(low: float, high: float, wanted: str) -> None:
    assert show_span(low, high) == wanted
