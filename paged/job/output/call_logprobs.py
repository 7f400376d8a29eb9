"""Log-probabilities as OpenAI's API writes them: one shape for chats, another for plain prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pagedrun.paged.values.logprobs import TokenLogprob, TopLogprob


@dataclass(frozen=True, slots=True)
class ChatTop:
    """A token that could have been chosen in a chat; `bytes` are those of its text in UTF-8."""

    token: str
    logprob: float
    bytes: tuple[int, ...]

    @classmethod
    def of(cls, token: TokenLogprob | TopLogprob) -> "ChatTop":
        """Return the token in OpenAI's words."""
        return cls(token.text, token.logprob, tuple(token.text.encode()))


@dataclass(frozen=True, slots=True)
class ChatToken:
    """A token of an answer in a chat."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[ChatTop, ...]


@dataclass(frozen=True, slots=True)
class ChatLogprobs:
    """The object under `logprobs` in a choice of a chat."""

    content: tuple[ChatToken, ...]
    refusal: None

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprob] | None) -> "ChatLogprobs | None":
        """Return the object for an answer's tokens; None if they were not asked for."""
        if tokens is None:
            return None
        content = []
        for each in tokens:
            own = ChatTop.of(each)
            top = tuple(map(ChatTop.of, each.top))
            content.append(ChatToken(own.token, own.logprob, own.bytes, top))
        return cls(tuple(content), None)


@dataclass(frozen=True, slots=True)
class TextLogprobs:
    """The object under `logprobs` in a choice of a plain prompt: lists, one item for each token.

    `text_offset` is where the token's text begins, in characters. `top_logprobs` is null where
    none are asked for; of tokens with the same text the likeliest is there.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...] | None
    text_offset: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprob] | None) -> "TextLogprobs | None":
        """Return the object for an answer's tokens; None if they were not asked for."""
        if tokens is None:
            return None
        texts = tuple(each.text for each in tokens)
        top = tuple({one.text: one.logprob for one in reversed(each.top)} for each in tokens)
        return cls(
            tokens=texts,
            token_logprobs=tuple(each.logprob for each in tokens),
            top_logprobs=top if any(top) else None,
            text_offset=tuple(accumulate(map(len, texts[:-1]), initial=0)) if texts else (),
        )
