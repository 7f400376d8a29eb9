"""Ballot: the votes of a row's samples, counted in their order until they decide."""

from collections.abc import Iterable
from dataclasses import dataclass

from pagedrun.paged.values.sampling.vote import vote_reader


@dataclass(frozen=True, slots=True)
class VoteResult:
    """What `drawn` samples voted for. `counts` are in the order of each one's first vote; `winner`
    has most, of equals it is the one that came first; None if no sample voted."""

    winner: str | None
    counts: dict[str, int]
    drawn: int


class Ballot:
    """The votes of `num_samples` samples, as far as they are known.

    It is decided when those to come cannot change the winner, whatever they vote for. So the
    samples drawn are the shortest beginning of all that decides, and which these are depends on
    the samples alone.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._counts: dict[str, int] = {}
        self._num_drawn = 0

    @classmethod
    def of(cls, vote: str, num_samples: int, texts: Iterable[str]) -> "Ballot":
        """Return the ballot when samples with these texts have voted."""
        ballot = cls(num_samples)
        read = vote_reader(vote)
        for text in texts:
            ballot.add(read(text))
        return ballot

    @classmethod
    def decided(cls, vote: str, num_samples: int, texts: Iterable[str]) -> VoteResult:
        """Return the result of a vote when the first samples have decided it, or all have voted."""
        ballot = cls(num_samples)
        read = vote_reader(vote)
        for text in texts:
            ballot.add(read(text))
            if not ballot.num_needed:
                break
        return ballot.result

    def add(self, vote: str | None) -> None:
        """Count the next sample's vote, None if it has none."""
        self._num_drawn += 1
        if vote is not None:
            self._counts[vote] = self._counts.get(vote, 0) + 1

    @property
    def result(self) -> VoteResult:
        """Who leads, and wins if it is decided."""
        winner = max(
            self._counts, key=self._counts.__getitem__, default=None
        )  # the first of equals
        return VoteResult(winner, dict(self._counts), self._num_drawn)

    @property
    def num_needed(self) -> int:
        """How many samples have to be drawn at least before it can be decided; 0 if it is.

        The next ones decide soonest if all vote for the one that leads.
        """
        left = self._num_samples - self._num_drawn
        first, second = self._leading()
        # After `more` votes for the first one, the others' votes must not suffice for the second,
        # which would have to come out ahead if its first vote is the later one.
        return next(
            more for more in range(left + 1) if more == left or first + more >= second + left - more
        )

    def _leading(self) -> tuple[int, int]:
        """Return the votes of the winner, and what another one has to beat them with: its votes,
        and one more if it wins when they are equal."""
        winner = self.result.winner
        if winner is None:
            return 0, 0
        place = list(self._counts).index(winner)
        named = enumerate(self._counts.items())
        others = [count + (at < place) for at, (name, count) in named if name != winner]
        return self._counts[winner], max(others, default=0)
