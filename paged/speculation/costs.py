"""Number of drafts of a step: chances of drafts to be right, and costs of rows.

A step of `n` sequences with `m` drafts costs the time of `n + m` rows, and is expected to give `n`
tokens and the sum of the drafts' chances. The best number of drafts gives most tokens a second.
Both sides are learned while the run goes on; they decide about time and never about bytes.
"""

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import inf

import numpy as np

from pagedrun.kernels.array_types import Float64s, Int64s

# Share of the time of a step by which a further row lengthens it, until a prompt was measured.
USUAL_ROW = 0.1
MIN_PROMPT = 64  # tokens; in fewer the weights take a large part of the time
PULL = 0.5  # weight of that, in steps
KEPT = 0.98  # weight of a step after another one
LONGEST = 2.0  # times the expected seconds; what takes longer is no cost of rows
# The first step of a new number of rows takes about so many steps longer: it is recorded.
TRIAL_STEPS = 4
MIN_GAIN = 1.05
MAX_GROWTH = 2  # times the most rows measured; an estimate farther from them would be a guess
ROW_UNIT = 4  # rows that kernels compute together; times a power of two, so that shapes are few


class RowCosts:
    """Seconds of a step by its number of rows: a line, corrected where steps were measured.

    A weighted least-squares fit in which a step counts less with each later one, since contexts
    grow and machines change their speed. Where no rows have been measured they are expected to cost
    what tokens of prompts cost, which bind arithmetic alone. What has not been tried for long looks
    cheap again, and is tried.
    """

    def __init__(self) -> None:
        # Sums of weights times 1, rows, rows², seconds, and rows x seconds.
        self._sums: Float64s = np.zeros(5, dtype=np.float64)
        self._measured: defaultdict[int, Float64s] = defaultdict(lambda: np.zeros(2))
        self._tried: set[int] = set()
        self._missed_s = 0.0
        self._prompt_token_s = inf
        self.best_gain = 1.0  # of the last choice, if any number of rows might be tried

    @property
    def is_known(self) -> bool:
        """True after the first step."""
        return bool(self._measured)

    def note(self, num_rows: int, seconds: float) -> None:
        """Add a step that computed `num_rows` generated tokens and drafts."""
        if self.is_known:
            seconds = min(seconds, LONGEST * float(self.seconds(np.array([num_rows]))[0]))
        step = np.array([1, num_rows, num_rows**2, seconds, num_rows * seconds], dtype=np.float64)
        self._sums *= KEPT
        self._sums += step
        for each in self._measured.values():
            each *= KEPT
        self._measured[num_rows] += np.array([1.0, seconds])

    def note_prompt(self, num_tokens: int, seconds: float) -> None:
        """Add a step that computed tokens of prompts; the cheapest ones count."""
        if num_tokens >= MIN_PROMPT:
            self._prompt_token_s = min(self._prompt_token_s, seconds / num_tokens)

    def note_trial(self, num_rows: int, seconds: float) -> None:
        """Add a step that took longer than others of its shape will take."""
        self._missed_s -= max(seconds - float(self.seconds(np.array([num_rows]))[0]), 0.0)

    def seconds(self, num_rows: Int64s) -> Float64s:
        """Return the expected seconds of steps; num_rows: [num_steps] int64, of each."""
        step, row = self._line()
        expected = (step + row * num_rows).astype(np.float64)
        for index, count in enumerate(num_rows.tolist()):
            if count in self._measured:
                weight, total = self._measured[count]
                expected[index] = (expected[index] + total) / (1 + weight)
        return np.maximum.accumulate(expected)

    def choose(self, num_rows: Int64s, num_tokens: Float64s, drafting_s: float) -> int:
        """Return the index of the step that gives most tokens a second.

        num_rows, num_tokens: [num_steps] int64 and float64, rows of each step and tokens expected
        of it; without drafts in the first one. drafting_s: seconds that drafts cost before. A
        number of rows without a measured step is tried once the seconds that it would have spared
        pay for the trial, and never one far above those that were measured.
        """
        seconds = self.seconds(num_rows)
        seconds[1:] += drafting_s
        speeds = num_tokens / seconds
        speeds[0] *= MIN_GAIN
        is_known = np.array([each in self._measured or each in self._tried for each in num_rows])
        is_known[0] = True
        known = int(np.where(is_known, speeds, 0.0).argmax())
        is_near = num_rows <= max(MAX_GROWTH * max(self._measured, default=0), ROW_UNIT)
        best = int(np.where(is_near, speeds, 0.0).argmax())
        self.best_gain = float(speeds[best] / speeds[0])
        if speeds[best] <= speeds[known]:
            return known
        self._missed_s += float((1 - speeds[known] / speeds[best]) * seconds[known])
        cost = TRIAL_STEPS * float(seconds[best])
        if self._missed_s < cost:
            return known
        self._tried.add(int(num_rows[best]))
        return best

    def _line(self) -> tuple[float, float]:
        """Return the fitted seconds of a step and of each of its rows."""
        weight, rows, squares, seconds, products = self._sums
        mean = rows / weight
        # One more step, of twice the rows, at the usual costs.
        more = 2 * mean + 4
        row = min(seconds / weight * USUAL_ROW / (1 + USUAL_ROW * mean), self._prompt_token_s)
        usual = seconds / weight + row * (more - mean)
        weight, rows, seconds = weight + PULL, rows + PULL * more, seconds + PULL * usual
        squares, products = squares + PULL * more**2, products + PULL * more * usual
        row = max((weight * products - rows * seconds) / (weight * squares - rows**2), 0.0)
        return max((seconds - row * rows) / weight, 0.0), row


# Chances of a draft after so many matched tokens (up to 3, 7, 15, more), before any is known.
USUAL_CHANCES = (0.4, 0.5, 0.6, 0.7)
USUAL_WEIGHT, RUN_WEIGHT = 4.0, 6.0  # in drafts
RUN_KEPT, SEQUENCE_KEPT = 0.99, 0.9  # weight of drafts after a later step with any


@dataclass(slots=True)
class Rate:
    """Weighted numbers of tried drafts and of right ones."""

    tried: float = 0.0
    right: float = 0.0

    def note(self, tried: int, right: int, kept: float) -> None:
        """Add the drafts of a step; kept: weight of those before."""
        self.tried = kept * self.tried + tried
        self.right = kept * self.right + right

    def pulled(self, usual: float, weight: float) -> float:
        """Return the share of right ones, beside a usual one of some weight."""
        return (self.right + weight * usual) / (self.tried + weight)


class Chances:
    """Chances of drafts to be right if those before them are.

    By source and matched tokens in the whole run, corrected for each group and sequence by their
    own rates.
    """

    def __init__(self) -> None:
        self._of_run: defaultdict[tuple[str, int], Rate] = defaultdict(Rate)

    def chance(self, source: str, num_matched: int, own: Seq[Rate]) -> float:
        """Return the chance of a draft; own: rates of its group and its sequence."""
        size = _size_of(num_matched)
        chance = self._of_run[source, size].pulled(USUAL_CHANCES[size], USUAL_WEIGHT)
        for rate in own:
            chance = rate.pulled(chance, RUN_WEIGHT)
        return chance

    def note(
        self, source: str, num_matched: int, own: Seq[Rate], num_tried: int, num_right: int
    ) -> None:
        """Add drafts of a step, which were tried up to the first wrong one."""
        self._of_run[source, _size_of(num_matched)].note(num_tried, num_right, RUN_KEPT)
        for rate in own:
            rate.note(num_tried, num_right, SEQUENCE_KEPT)


def _size_of(num_matched: int) -> int:
    """Return the index of a number of matched tokens in `USUAL_CHANCES`."""
    return min(max(num_matched.bit_length() - 2, 0), len(USUAL_CHANCES) - 1)


def best_lengths(
    lengths: Seq[int],
    chances: Seq[float],
    rows: range,
    costs: RowCosts,
    drafting_s: float = 0.0,
) -> list[int]:
    """Return the number of drafts of each sequence that gives most tokens a second.

    lengths, chances: number of proposed drafts of each sequence, and the chance of each of its
    drafts. rows: of the step, from that without drafts to that with all that have room.
    drafting_s: see `RowCosts.choose`.
    """
    proposed = list(enumerate(zip(lengths, chances, strict=True)))
    owners = [index for index, (length, _) in proposed for _ in range(length)]
    gains = np.array([p**i for _, (length, p) in proposed for i in range(1, length + 1)])
    order = np.argsort(-gains, kind="stable")
    num_rows, most = rows[0], min(rows[0] + len(gains), rows[-1])
    full = [ROW_UNIT << power for power in range((most // ROW_UNIT).bit_length())]
    full = full or [most]  # one or two drafts of a sequence, from a module that predicts no more
    counts = np.array([0, *(each - num_rows for each in full if each > num_rows)])
    expected = num_rows + np.concatenate([[0.0], np.cumsum(gains[order])])[counts]
    chosen = int(counts[costs.choose(num_rows + counts, expected, drafting_s)])
    found = [0] * len(lengths)
    for index in order[:chosen].tolist():
        found[owners[index]] += 1
    return found
