"""TimeLeft: how long a running job still takes, as an interval, learnt from the run itself."""

from dataclasses import dataclass
from math import exp

from pagedrun.paged.job.progress import AnswerLengths
from pagedrun.paged.report.record.timeline import StepRecord

# What rows differ in besides the length of their answers, as a share of the mean.
OTHER_SPREAD = 0.3
LEAST_WIDTH = 0.25  # machines have other work, and rows of one kind come together
DISTURBED_S = 1.0  # that other programs may take at any time
ALONE_SHARE = 0.33  # of the longest answer, for which the batch is not full any more
DEVIATIONS = 1.6  # nine in ten draws are within so many standard deviations


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds, at least and at most, and between them the best guess."""

    low_s: float
    high_s: float
    guess_s: float

    @classmethod
    def of(
        cls,
        run_s: float,
        step_s: float,
        record: StepRecord,
        lengths: AnswerLengths,
        speed_spread: float = 0.0,
    ) -> "TimeLeft | None":
        """Return what is left of a run; None while no row has come back.

        run_s: since it began. step_s: what a step takes at present. lengths: of the answers that
        came back. speed_spread: the standard deviation of the speed's logarithm.

        What is left is what the waiting rows have before them, and those under way: at least what
        the mean answer leaves of theirs, and at most what is left of answers that one comes upon,
        which are the long ones. The mean is at least that of the answers that came back, and at
        most what it is if all others under way become as long as they may. What was spent so far
        has paid for no more than the rows that were begun. To that comes what so few rows cannot
        tell, and the longest answer, as at the end there are no others to compute beside it. What
        is left may run as much faster or slower as parts of the run did, and of a young run it is
        not known yet whether it was disturbed.

        The guess takes the answers under way for as far as answers of this spread still go on
        average when one comes upon them, and those of waiting rows for the mean of both kinds. Some
        of the time that the longest takes is spent beside few others, which is not the speed so
        far; at the end of the run that answer alone may decide.
        """
        left = record.total - record.finished
        if not lengths.count or record.generated_tokens <= 0:
            return None
        waiting = min(record.waiting, left)
        under_way, num_new = left - waiting, max(record.generated_tokens - lengths.total, 0)
        cut = under_way * max(lengths.most_allowed, lengths.longest)
        least, most = lengths.mean, (lengths.total + cut) / (lengths.count + under_way)
        low = waiting * least + max(under_way * least - num_new, 0.0)
        met = max(most * (1 + lengths.spread**2) / 2, most)
        high = waiting * most + under_way * met
        unknown = (1 / lengths.count + 1 / max(left, 1)) ** 0.5
        width = 1 + LEAST_WIDTH + DEVIATIONS * (lengths.spread + OTHER_SPREAD) * unknown
        token_s = run_s / record.generated_tokens
        # Who has come so far is likely to go as far again.
        longest = max(lengths.longest, 2 * num_new / max(under_way, 1))
        tail_s = longest * step_s if left else 0.0
        begun = max(record.total - waiting, 1)
        least_s = min(low * token_s, run_s * waiting / begun)
        swing = exp(speed_spread) * (1 + DISTURBED_S / max(run_s, DISTURBED_S))
        low_s, high_s = least_s / width / swing, (high * token_s * width + tail_s) * swing
        guess_s = _guess(lengths, waiting, under_way, num_new, token_s, step_s)
        return cls(low_s, high_s, min(max(guess_s, low_s), high_s))


def _guess(
    lengths: AnswerLengths,
    waiting: int,
    under_way: int,
    num_new: int,
    token_s: float,
    step_s: float,
) -> float:
    """Return the seconds that the waiting rows and those under way, which have `num_new` tokens
    together, are likely to take."""
    age = num_new / max(under_way, 1)
    cap = max(lengths.most_allowed, lengths.longest)
    met = lengths.mean * (1 + lengths.spread**2) / 2
    length = min(max(age + met, lengths.mean), cap)
    mean = (lengths.total + under_way * length) / (lengths.count + under_way)
    rest = max(length - age, 0.0)
    work_s = (waiting * mean + under_way * rest) * token_s
    if waiting:
        return work_s + ALONE_SHARE * lengths.longest * step_s
    return max(work_s, max(lengths.longest - age, rest) * step_s if under_way else 0.0)
