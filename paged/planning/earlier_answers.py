"""What a plan asks of the answers of an earlier run: rows that need not run, or not all the way."""

from typing import Protocol

from pagedrun.paged.values.request import Completion, Request


class EarlierAnswer(Protocol):
    """An answer that an earlier run gave to the same question.

    It is whole, or else has the tokens with which the answer of a new run begins.
    """

    @property
    def is_whole(self) -> bool:
        """Whether a new run would give just this answer."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first tokens of the answer."""

    def completion(self, request: Request) -> Completion:
        """Return what answers `request`, of a whole answer."""


class EarlierAnswers(Protocol):
    """The answers of an earlier run of the same model, by their questions."""

    def find(self, request: Request, num_read_once_tokens: int) -> EarlierAnswer | None:
        """Return the answer to a request that reads so many tokens together with other rows."""
