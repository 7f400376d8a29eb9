"""StructuredAnswer: where an answer is: in the thought before its structure, or in that."""

from collections.abc import Iterable

import numpy as np

from pagedrun.paged.text.grammar.compiler import CompiledGrammar, TokenMask
from pagedrun.paged.text.grammar.matcher import GrammarMatcher
from pagedrun.paged.text.grammar.thought_tokens import ThoughtTokens
from pagedrun.paged.text.thought import Thinking


class StructuredAnswer:
    """Takes an answer's tokens one by one; its structure begins behind its thought.

    Where a thought may begin, the next token is one of the structure, or of the opening tag. In a
    thought any token may come next, but none that closes it and goes on behind the closing tag.
    """

    __slots__ = ("_grammar", "_matcher", "_opening", "_tags", "_thought")

    def __init__(
        self,
        grammar: CompiledGrammar,
        thought: Thinking | None = None,
        tags: ThoughtTokens | None = None,
    ) -> None:
        """thought: what the answer may begin with, marked by `tags`; None: by no thought."""
        self._grammar = grammar
        self._thought = thought
        self._tags = tags
        self._opening = () if tags is None else tags.opening  # what is left of the tag
        is_open = thought is not None and thought.is_open
        self._matcher = None if is_open else GrammarMatcher(grammar)

    def take(self, token: int) -> None:
        """Go on by a token of the answer."""
        thought = self._thought
        if thought is None:
            assert self._matcher is not None, "neither a thought nor a structure goes on"
            self._matcher.take(token)
            return
        if not thought.is_open:
            self._begin_with(token)
        thought.take(token)
        if thought.is_open:
            self._matcher = None
        elif thought.is_over:
            self._thought, self._opening = None, ()
            self._matcher = self._matcher or GrammarMatcher(self._grammar)

    def _begin_with(self, token: int) -> None:
        """Take a token that is one of the structure, or of the opening tag, or both."""
        is_tag = self._opening[:1] == (token,)
        self._opening = self._opening[1:] if is_tag else ()
        if self._matcher is not None:
            if is_tag and not _allows(self._matcher.mask, token):
                self._matcher = None
            else:
                self._matcher.take(token)

    @property
    def mask(self) -> TokenMask | None:
        """What may come next; None if anything may. It is there when `unfilled` has its own."""
        thought, matcher = self._thought, self._matcher
        if thought is None:
            return None if matcher is None else matcher.mask
        nothing = np.zeros_like(self._grammar.first_mask)
        if thought.is_open:
            beyond = () if self._tags is None else self._tags.beyond(thought.end)
            return ~_with(nothing, beyond) if beyond else None
        return _with(nothing if matcher is None else matcher.mask, self._opening[:1])

    @property
    def unfilled(self) -> GrammarMatcher | None:
        """The matcher whose mask has to be computed before `mask` can be asked for, if any."""
        is_needed = self._matcher is not None and not self._matcher.is_over
        return self._matcher if is_needed else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
        return self._matcher is not None and self._matcher.is_complete

    @property
    def error(self) -> str:
        """Why the structure can allow no token any more, empty if it can."""
        return "" if self._matcher is None else self._matcher.error

    def forced_token(self) -> int | None:
        """Return the one token of the structure that may come next; None if there are several."""
        if self._matcher is None or self._opening:
            return None
        return self._matcher.forced_token()


def _allows(mask: TokenMask, token: int) -> bool:
    return bool(int(mask[token // 32]) >> token % 32 & 1)


def _with(mask: TokenMask, tokens: Iterable[int]) -> TokenMask:
    """Return a mask that allows these tokens too."""
    words = mask.view(np.uint32).copy()
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)
