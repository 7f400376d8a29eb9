"""ThoughtTokens: which tokens open a thought before a structure, and which end it too late."""

from functools import cache

from pagedrun.paged.text.reasoning_tags import ReasoningTags
from pagedrun.paged.text.thought import Thought
from pagedrun.paged.text.tokenizer import Tokenizer


class ThoughtTokens:
    """How one tokenizer writes the tags of thoughts.

    `opening` are the tokens of the opening tag, none if it is not alone in them.
    """

    def __init__(self, tokenizer: Tokenizer, tags: ReasoningTags) -> None:
        self._closing = tags.closing
        self.opening = _opening(tokenizer, tags)
        texts = enumerate(tokenizer.token_texts())
        self._texts = [(token, text) for token, text in texts if tags.closing[-1] in text[:-1]]
        self._beyond = cache(self._found_beyond)

    def beyond(self, end: str) -> tuple[int, ...]:
        """Return the tokens that would close a thought and begin the answer behind it at once.

        end: the end of the thought, at least as much of it as the closing tag has characters.
        """
        closing = self._closing
        sizes = (size for size in range(len(closing) - 1, 0, -1) if end.endswith(closing[:size]))
        return self._beyond(closing[: next(sizes, 0)])

    def _found_beyond(self, begun: str) -> tuple[int, ...]:
        """Find them where this part of the closing tag is there."""
        parts = ((token, (begun + text).partition(self._closing)) for token, text in self._texts)
        return tuple(token for token, (_, _, answer) in parts if answer.strip())


def _opening(tokenizer: Tokenizer, tags: ReasoningTags) -> tuple[int, ...]:
    [tokens] = tokenizer.encode_batch([tags.opening], add_special_tokens=False)
    thought = Thought(
        tags, lambda ids: tokenizer.decode(ids, skip_special_tokens=False), is_open=False
    )
    for token in tokens:
        thought.take(token)
    return tuple(tokens) if thought.is_open else ()
