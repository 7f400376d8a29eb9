"""Sources of drafts: tokens that an answer may continue with, computed beside its newest token.

A drafted token is right exactly if the row's own draw at that position gives it: every draw is
keyed by seed, row, sample and position, and rows of the decode path do not depend on each other. So
drafts change when a token is computed and never which.

Each source continues an answer as a text went on where it had the answer's last tokens: the prompt
and the answer itself, answers of other rows, or the answer that the row had in an earlier run.
"""

from collections import deque
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from pagedrun.paged.speculation.suffix_index import IndexedText, SuffixIndex
from pagedrun.paged.values.request import Request

MIN_MATCH = 3  # tokens that must have occurred before
_START = -1  # before an answer

OWN_TEXT, OTHER_ROWS, OLD_ANSWER = "prompt_lookup", "other_rows", "from_output"
GRAMMAR, MTP = "grammar", "mtp"


class Proposal(NamedTuple):
    """Tokens that may follow an answer, their source, and the number of tokens before them that the
    source has too.

    num_own: number of tokens from the source, None for all; a grammar has appended the others.
    """

    tokens: list[int]
    source: str
    num_matched: int
    num_own: int | None = None


def can_draft(request: Request) -> bool:
    """Return whether the tokens of a request are drawn one by one."""
    params = request.params
    return not params.has_beams and not request.continuations and params.max_tokens > 0


class Drafter(Protocol):
    """Source of drafts for one sequence."""

    def append(self, tokens: Seq[int]) -> None:
        """Add tokens that the answer has now."""

    def propose(self, most: int) -> Proposal | None:
        """Return up to `most` tokens that may follow, None if nothing suggests any."""


class PromptLookup:
    """Drafts from the prompt and the answer of the sequence itself; prompt: its last tokens."""

    def __init__(self, prompt: Seq[int]) -> None:
        self._index, self._text = SuffixIndex(), IndexedText()
        self._index.extend(self._text, prompt)

    def append(self, tokens: Seq[int]) -> None:
        """Add tokens to the text."""
        self._index.extend(self._text, tokens)

    def propose(self, most: int) -> Proposal | None:
        """Return the tokens that followed the last ones where they occurred before."""
        return _proposal(self._index, self._text, most, OWN_TEXT, MIN_MATCH)


class EarlierAnswer:
    """Drafts from an answer that the row has had in an earlier run."""

    def __init__(self, answer: Seq[int]) -> None:
        self._index, self._text = SuffixIndex(), IndexedText()
        self._index.extend(IndexedText(), [_START, *answer])
        self._index.extend(self._text, [_START])

    def append(self, tokens: Seq[int]) -> None:
        """Add tokens to the new answer."""
        self._index.extend(self._text, tokens)

    def propose(self, most: int) -> Proposal | None:
        """Return the tokens that follow in the earlier answer; the first token must be its own."""
        return _proposal(self._index, self._text, most, OLD_ANSWER, 2)


class OtherAnswers:
    """Answers of a run in one index of bounded size; the latest are kept.

    Finished ones are entered when drafts are next asked for, so that they cost nothing before. A
    full index is made anew from the latest half of its tokens.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._index = SuffixIndex()
        self._texts: list[IndexedText] = []  # of the index, oldest first
        self._finished: deque[list[int]] = deque()
        self._num_waiting = 0

    @property
    def num_tokens(self) -> int:
        """Tokens in the index, and of answers that wait to be entered."""
        return self._index.num_tokens + self._num_waiting

    def add(self, answer: list[int]) -> None:
        """Add a finished answer."""
        self._finished.append(answer)
        self._num_waiting += len(answer)
        while self._num_waiting > self._max_tokens // 2:
            self._num_waiting -= len(self._finished.popleft())

    def extend(self, text: IndexedText, tokens: Seq[int]) -> None:
        """Append tokens to a running answer, or begin it."""
        while self._finished:
            answer = self._finished.popleft()
            self._num_waiting -= len(answer)
            self._enter(IndexedText(), answer)
        self._enter(text, tokens)

    def following(self, text: IndexedText, most: int) -> Proposal | None:
        """Return the tokens that followed the last ones of a text in any."""
        return _proposal(self._index, text, most, OTHER_ROWS, MIN_MATCH)

    def _enter(self, text: IndexedText, tokens: Seq[int]) -> None:
        tokens = tokens[-(self._max_tokens // 2) :]
        if self._index.num_tokens + len(tokens) > self._max_tokens:
            self._renew()
        if tokens and not text.tokens:
            self._texts.append(text)
        self._index.extend(text, tokens)

    def _renew(self) -> None:
        """Make a new index of the latest texts; running ones that are not among them begin anew."""
        texts, self._texts, self._index = self._texts, [], SuffixIndex()
        room, kept = self._max_tokens // 2, []
        for text in reversed(texts):
            tokens = text.restart()
            if len(tokens) <= room:
                room -= len(tokens)
                kept.append((text, tokens))
        for text, tokens in reversed(kept):
            self._enter(text, tokens)


class RunningAnswer:
    """Drafts from all answers of a run for one of them, which becomes a text of their index."""

    def __init__(self, answers: OtherAnswers) -> None:
        self._answers = answers
        self._text = IndexedText()

    def append(self, tokens: Seq[int]) -> None:
        """Add tokens to the answer."""
        self._answers.extend(self._text, tokens)

    def propose(self, most: int) -> Proposal | None:
        """Return the tokens that followed the last ones in any answer."""
        return self._answers.following(self._text, most)


def _proposal(
    index: SuffixIndex, text: IndexedText, most: int, source: str, min_match: int
) -> Proposal | None:
    tokens = index.following(text, most) if text.num_matched >= min_match else []
    return Proposal(tokens, source, text.num_matched) if tokens else None
