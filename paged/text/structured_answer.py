"""State of structured answers: position in the grammar, token masks, and reasoning before it."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.text.grammar import CompiledGrammar, TokenMask, compute_mask
from pagedrun.paged.text.reasoning import ReasoningState, ReasoningTags, TaggedReasoning
from pagedrun.paged.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


class GrammarMatcher:
    """Position of an answer in its grammar; `mask` has the allowed next tokens.

    The mask is that of the tokens at the last filling by `MaskWorker`. `error` is the reason why no
    token is allowed, empty without one.

    The cache of the grammar is shared with other answers at first. When that reaches a limit, the
    matcher restarts with a grammar of its own: whether an answer fails depends on it alone.
    """

    __slots__ = ("_grammar", "_is_alone", "_state", "_tokens", "error", "mask")

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._state: LLMatcher | None = grammar.start.deep_copy()
        self._is_alone = False
        self._tokens: list[int] = []
        self.mask = grammar.first_mask
        self.error = ""
        self._note_end()

    @property
    def is_complete(self) -> bool:
        """True if only the end may follow."""
        return self._state is None and not self.error

    @property
    def is_alone(self) -> bool:
        """True if its grammar is not shared."""
        return self._is_alone

    @property
    def state(self) -> "LLMatcher":
        """State of llguidance; none after the end."""
        assert self._state is not None, "an answer goes on behind its end"
        return self._state

    @property
    def is_over(self) -> bool:
        """True if no token is accepted any more."""
        return self._state is None

    def take(self, token: int) -> None:
        """Advance by a token of the answer."""
        self._tokens.append(token)
        self.state.consume_token(token)
        self._note_end()

    def forced_token(self) -> int | None:
        """Return the only allowed next token; None if there are several.

        It is the only bit of the mask, so that sampling would give no other.
        """
        if self._state is None or not self._state.compute_ff_tokens():
            return None  # the usual case, known without the mask
        self.compute_mask()
        (words,) = np.nonzero(self.mask)
        if len(words) != 1 or self.error:
            return None
        bits = int(self.mask[words[0]]) & 0xFFFFFFFF
        return None if bits & (bits - 1) else 32 * int(words[0]) + bits.bit_length() - 1

    def compute_mask(self) -> None:
        """Compute the mask of this position, in the caller's thread."""
        self.fill(compute_mask(self.state, len(self.mask)))

    def fill(self, mask: TokenMask) -> None:
        """Set the mask computed for this position in the grammar."""
        self.mask = mask
        self._note_end()

    def _note_end(self) -> None:
        """Release the grammar after the end."""
        if self._state is None or not self._state.is_stopped():
            return
        reason = self._state.stop_reason()
        if reason in _ENDS:
            self._state = None
        elif self._is_alone:
            self.error = f"{reason} {self._state.get_error()}".strip()
            self.mask = np.zeros_like(self.mask)
            self._state = None
        else:
            self._start_over()

    def _start_over(self) -> None:
        """Replay all tokens with an unshared grammar.

        A mask is computed before each, as if it had never been shared.
        """
        self._is_alone = True
        self._state = state = self._grammar.fresh()
        width = len(self.mask)
        for token in self._tokens:
            state.compute_bitmask()
            state.consume_token(token)
        if not state.is_stopped():
            self.mask = compute_mask(state, width)
        self._note_end()


class ReasoningTokens:
    """Tokens of reasoning tags in one tokenizer.

    `opening` are the tokens of the opening tag, empty unless they hold it alone.
    """

    def __init__(self, tokenizer: Tokenizer, tags: ReasoningTags) -> None:
        self._closing = tags.closing
        self.opening = _opening(tokenizer, tags)
        texts = enumerate(tokenizer.token_texts())
        self._texts = [(token, text) for token, text in texts if tags.closing[-1] in text[:-1]]
        self._beyond = cache(self._found_beyond)

    def beyond(self, end: str) -> tuple[int, ...]:
        """Return the tokens that would close reasoning and also begin the answer.

        end: the end of the reasoning, at least as long as the closing tag.
        """
        closing = self._closing
        sizes = (size for size in range(len(closing) - 1, 0, -1) if end.endswith(closing[:size]))
        return self._beyond(closing[: next(sizes, 0)])

    def _found_beyond(self, begun: str) -> tuple[int, ...]:
        """Find these tokens after this part of the closing tag."""
        parts = ((token, (begun + text).partition(self._closing)) for token, text in self._texts)
        return tuple(token for token, (_, _, answer) in parts if answer.strip())


class StructuredAnswer:
    """State of a structured answer, whose structure begins after its reasoning.

    Where reasoning may begin, the next token is one of the structure, or of the opening tag. In
    reasoning any token is allowed except those that close it and continue after the closing tag.
    """

    __slots__ = ("_grammar", "_matcher", "_opening", "_tags", "_thought")

    def __init__(
        self,
        grammar: CompiledGrammar,
        thought: ReasoningState | None = None,
        tags: ReasoningTokens | None = None,
    ) -> None:
        """thought: reasoning that may come first, marked by `tags`; None without reasoning."""
        self._grammar = grammar
        self._thought = thought
        self._tags = tags
        self._opening = () if tags is None else tags.opening  # the rest of the tag
        is_open = thought is not None and thought.is_open
        self._matcher = None if is_open else GrammarMatcher(grammar)

    def take(self, token: int) -> None:
        """Advance by a token of the answer."""
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
        """Advance by a token of the structure, of the opening tag, or both."""
        is_tag = self._opening[:1] == (token,)
        self._opening = self._opening[1:] if is_tag else ()
        if self._matcher is not None:
            if is_tag and not _allows(self._matcher.mask, token):
                self._matcher = None
            else:
                self._matcher.take(token)

    @property
    def mask(self) -> TokenMask | None:
        """Mask of allowed next tokens; None if all are. Needs the mask of `unfilled` first."""
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
        """Matcher whose mask must be computed before `mask` is read, if any."""
        is_needed = self._matcher is not None and not self._matcher.is_over
        return self._matcher if is_needed else None

    @property
    def structure_matcher(self) -> GrammarMatcher | None:
        """Matcher if the next token is one of the structure for sure."""
        return self._matcher if self._thought is None else None

    @property
    def is_complete(self) -> bool:
        """True if only the end may follow."""
        return self._matcher is not None and self._matcher.is_complete

    @property
    def error(self) -> str:
        """Reason why the structure allows no token, empty without one."""
        return "" if self._matcher is None else self._matcher.error

    def forced_token(self) -> int | None:
        """Return the only token of the structure that may come next; None if there are several."""
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


_ENDS = ("NoExtension", "EndOfSentence")


class MaskWorker:
    """Computes the masks of many answers at once, in another thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "masks")
        self._executor: LLExecutor | None = None
        self._filling: list[Future[None]] = []

    def begin(self, matchers: Seq[GrammarMatcher]) -> None:
        """Begin to fill the masks of matchers, which must not be used until `wait` returns."""
        if matchers:
            self._filling.append(self._thread.submit(self._fill, matchers))

    def wait(self) -> None:
        """Wait until all masks are filled."""
        for each in self._filling:
            each.result()
        self._filling.clear()

    def _fill(self, matchers: Seq[GrammarMatcher]) -> None:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(cpu_quota())
        masks = np.empty((len(matchers), len(matchers[0].mask)), dtype=np.int32)
        states = [(each.state, row) for row, each in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(
            states, masks.ctypes.data, masks.strides[0], len(masks)
        )
        for each, mask in zip(matchers, masks, strict=True):
            each.fill(mask)


def _opening(tokenizer: Tokenizer, tags: ReasoningTags) -> tuple[int, ...]:
    [tokens] = tokenizer.encode_batch([tags.opening], add_special_tokens=False)
    thought = TaggedReasoning(
        tags, lambda ids: tokenizer.decode(ids, skip_special_tokens=False), is_open=False
    )
    for token in tokens:
        thought.take(token)
    return tuple(tokens) if thought.is_open else ()
