"""Rules: which values a field takes, and how a refusal says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """`wanted` goes on from "must be"; `words` are all values there are, if these are few."""

    accepts: Callable[[object], bool]
    wanted: str
    words: tuple[str, ...] = ()

    @property
    def way_out(self) -> str:
        """What to tell about a value that is not accepted."""
        return (
            f"choose one of {', '.join(self.words)}" if self.words else f"it must be {self.wanted}"
        )


def integers(low: int, high: int | None = None) -> Rule:
    """Return the rule for integers from `low` to `high`, without end if that is None."""

    def accepts(value: object) -> bool:
        return is_int(value) and low <= value and (high is None or value <= high)  # type: ignore[operator]

    wanted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    return Rule(accepts, wanted)


def floats(low: float, high: float) -> Rule:
    """Return the rule for floating-point numbers from `low` to `high`; NaN is in no interval."""
    return Rule(
        lambda value: isinstance(value, float) and low <= value <= high,
        f"a number from {low:g} to {high:g}",
    )


def spans(high: float) -> Rule:
    """Return the rule for spans of time in seconds, more than none and up to `high`."""
    return Rule(
        lambda value: isinstance(value, float | int) and 0 < value <= high,
        f"more than 0 seconds and at most {high:g}",
    )


def one_of(words: Sequence[str]) -> Rule:
    """Return the rule for one of a few words."""
    return Rule(lambda value: value in words, f"one of {', '.join(words)}", tuple(words))


def is_int(value: object) -> bool:
    """Whether a value is an integer; to Python, True is one."""
    return isinstance(value, int) and not isinstance(value, bool)
