"""Log-probabilities of tokens, and scores of continuations.

All are natural logarithms of the model's own distribution, before temperature, filters,
penalties and masks. Impossible tokens have `IMPOSSIBLE`, as JSON has no infinity.
"""

from dataclasses import dataclass

IMPOSSIBLE = -9999.0
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """A token that could have been chosen; the likeliest has rank 1."""

    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was chosen or given: `rank` counts the tokens that are at least as likely.

    `top` are the likeliest tokens at its place, as many as were asked for, the lowest id first on
    ties; the token itself may be among them.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text to score behind a prompt, and the tokens that it adds to the prompt's."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probability of a continuation: `logprob` is the sum over its tokens.

    `is_greedy` says whether a greedy choice would have been each of them at its place.
    """

    text: str
    logprob: float
    num_tokens: int
    is_greedy: bool
    token_logprobs: tuple[float, ...]

    @classmethod
    def of(cls, text: str, tokens: tuple[TokenLogprob, ...]) -> "Score":
        """Return what these tokens, each with its likeliest other, come to."""
        logprobs = tuple(token.logprob for token in tokens)
        return cls(
            text=text,
            logprob=sum(logprobs),
            num_tokens=len(tokens),
            is_greedy=all(token.top[0].token_id == token.token_id for token in tokens),
            token_logprobs=logprobs,
        )
