"""AnswerLengths: how long the answers are that came back so far, in tokens."""

from dataclasses import dataclass


@dataclass(slots=True)
class AnswerLengths:
    """Of each row the tokens that were computed for all of its samples; `most_allowed` is what the
    row may have that may have most."""

    count: int = 0
    total: int = 0
    longest: int = 0
    most_allowed: int = 0
    _squares: int = 0

    def allow(self, num_tokens: int) -> None:
        """Take note of what a row may have."""
        self.most_allowed = max(self.most_allowed, num_tokens)

    def note(self, num_tokens: int) -> None:
        """Count a row."""
        self.count += 1
        self.total += num_tokens
        self.longest = max(self.longest, num_tokens)
        self._squares += num_tokens * num_tokens

    @property
    def mean(self) -> float:
        """0 where there is none."""
        return self.total / max(self.count, 1)

    @property
    def spread(self) -> float:
        """The standard deviation as a share of the mean; 1 where there is too little to tell."""
        if self.count < 2 or not self.total:
            return 1.0
        variance = max(self._squares / self.count - self.mean**2, 0.0)
        return float(variance**0.5 / self.mean)
