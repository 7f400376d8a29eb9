"""Log-probabilities of tokens, and scores of continuations.

All are natural logarithms of the model's own distribution, before temperature, filters,
penalties and masks. Impossible tokens have `IMPOSSIBLE`, as JSON has no infinity.
"""

from dataclasses import dataclass

IMPOSSIBLE = -9999.0
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely tokens; the most likely has rank 1."""

    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Sampled or given token: `rank` counts the tokens that are at least as likely.

    `top`: the requested number of most likely tokens at its position, the lowest id first on ties;
    the token itself may be among them.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Continuation:
    """Text to score after a prompt, and the tokens that it adds to the prompt's."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probability of a continuation: `logprob` is the sum over its tokens.

    `is_greedy`: each token is the greedy choice at its position.
    """

    text: str
    logprob: float
    num_tokens: int
    is_greedy: bool
    token_logprobs: tuple[float, ...]

    @classmethod
    def of(cls, text: str, tokens: tuple[TokenLogprob, ...]) -> "Score":
        """Return the score of these tokens, each with the most likely one at its position."""
        logprobs = tuple(token.logprob for token in tokens)
        return cls(
            text=text,
            logprob=sum(logprobs),
            num_tokens=len(tokens),
            is_greedy=all(token.top[0].token_id == token.token_id for token in tokens),
            token_logprobs=logprobs,
        )
