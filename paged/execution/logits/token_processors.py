"""Logits processors that forbid, force or bias single tokens.

Allowed tokens, bad words, minimum lengths, logit biases and thinking budgets, with the tables
that they share: parameters by request, lists of (row, token) pairs, and a trie of forbidden
words. Parameters of a flag are one object in all rows and may be as long as a vocabulary:
`LastMade` converts them once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.logits_processor import SamplingBatch
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.reasoning import ThoughtBudget
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import Request


class AllowedTokens:
    """Forbids every token but those that a request allows."""

    needs_newest_token = False
    can_be_captured = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._asked: PerRequest[Int64s] = PerRequest()
        self._ids: LastMade[tuple[int, ...], Int64s] = LastMade(_ids_of)

    def begin(self, request: Request) -> None:
        """Keep the ids that the request allows."""
        self.end(request.index)
        if request.params.allowed_token_ids is not None:
            self._asked[request.index] = self._ids.of(request.params.allowed_token_ids)

    def end(self, row: int) -> None:
        """Drop the ids that a request allows."""
        self._asked.pop(row)

    def applies(self, draws: Draws) -> bool:
        """Return whether some request does not allow all."""
        return self._asked.is_asked(draws.row)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Do nothing: the same tokens are allowed all along."""

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Write minus infinity where a token is not allowed."""
        assert batch.draws is not None
        asked = list(self._asked.found(batch.draws.row))
        pairs = TokenPairs.of(asked, self._device)
        allowed = logits[pairs.rows, pairs.token_ids]
        rows = self._device.place(torch.tensor([row for row, _ in asked]))
        logits.index_fill_(0, rows, -torch.inf)
        logits[pairs.rows, pairs.token_ids] = allowed
        return logits


def _ids_of(token_ids: tuple[int, ...]) -> Int64s:
    return np.array(token_ids, dtype=np.int64)


class WordTree:
    """A place in the tree: the words that begin with the tokens on the way to it.

    `last` are the tokens that complete one of them, `following` leads on to longer ones.
    """

    __slots__ = ("following", "last")

    def __init__(self, words: Iterable[tuple[int, ...]] = ()) -> None:
        """Make the root of the tree of these words, of which none is empty."""
        self.last: set[int] = set()
        self.following: dict[int, WordTree] = {}
        for word in words:
            place = self
            for token in word[:-1]:
                place = place.following.setdefault(token, WordTree())
            place.last.add(word[-1])


class _Words:
    """The words that a request forbids, and how far each sample has come in some of them.

    `begun` has by sample the places in the tree to which ends of its answer lead, from the root on.
    """

    def __init__(self, tree: WordTree) -> None:
        self.tree = tree
        self.always = _array(self.tree.last)  # words of one token
        self.begun: dict[int, list[WordTree]] = {}

    def note(self, sample: int, token: int) -> None:
        places = (*self.begun.get(sample, ()), self.tree)
        self.begun[sample] = [
            place.following[token] for place in places if token in place.following
        ]

    def forbidden(self, sample: int) -> Int64s:
        """Return the tokens that would complete a word, [num_tokens] int64."""
        places = self.begun.get(sample)
        if not places:
            return self.always
        return _array(self.tree.last.union(*(place.last for place in places)))


class BadWordsFilter:
    """Forbids the last token of a word where its other tokens end the answer so far."""

    needs_newest_token = True
    can_be_captured = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._asked: PerRequest[_Words] = PerRequest()
        self._trees: LastMade[tuple[tuple[int, ...], ...], WordTree] = LastMade(WordTree)

    def begin(self, request: Request) -> None:
        """Keep the words that the request forbids."""
        self.end(request.index)
        assert bool(request.params.bad_words) == bool(request.bad_words_ids), "words without ids"
        if request.bad_words_ids:
            self._asked[request.index] = _Words(self._trees.of(request.bad_words_ids))

    def end(self, row: int) -> None:
        """Drop the words that a request forbids."""
        self._asked.pop(row)

    def applies(self, draws: Draws) -> bool:
        """Return whether some request forbids words."""
        return self._asked.is_asked(draws.row)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Go on in the words that answers have begun."""
        for place, words in self._asked.found(rows):
            words.note(int(samples[place]), int(tokens[place]))

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Write minus infinity where a token would complete a word."""
        assert batch.draws is not None
        samples = batch.draws.sample
        forbidden = (
            (place, words.forbidden(int(samples[place])))
            for place, words in self._asked.found(batch.draws.row)
        )
        pairs = TokenPairs.of(forbidden, self._device)
        logits[pairs.rows, pairs.token_ids] = -torch.inf
        return logits


def _array(tokens: set[int]) -> Int64s:
    return np.array(sorted(tokens), dtype=np.int64)


class MinTokens:
    """Forbids what would stop an answer that has not got its `min_tokens`."""

    needs_newest_token = False
    can_be_captured = True

    def begin(self, request: Request) -> None:
        """Do nothing: what stops an answer is in the draws."""

    def end(self, row: int) -> None:
        """Do nothing: nothing is kept."""

    def applies(self, draws: Draws) -> bool:
        """Return whether some answer is too short."""
        return bool(draws.stop_token_ids)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Do nothing: how many tokens there are is in the draws."""

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Return logits in which no answer can stop too early."""
        return logits if batch.early_stops is None else batch.early_stops.forbidden(logits)


class _Bias(NamedTuple):
    """token_ids: [num_ids] int64, each once. biases: [num_ids] float32."""

    token_ids: Int64s
    biases: NDArray[np.float32]

    @classmethod
    def of(cls, pairs: tuple[tuple[int, float], ...]) -> "_Bias":
        token_ids, biases = zip(*pairs, strict=True)
        return cls(np.array(token_ids, dtype=np.int64), np.array(biases, dtype=np.float32))


class LogitBias:
    """Makes tokens that a request names likelier, or less likely."""

    needs_newest_token = False
    can_be_captured = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._asked: PerRequest[_Bias] = PerRequest()
        self._biases: LastMade[tuple[tuple[int, float], ...], _Bias] = LastMade(_Bias.of)

    def begin(self, request: Request) -> None:
        """Keep the biases of the request."""
        self.end(request.index)
        if request.params.logit_bias:
            self._asked[request.index] = self._biases.of(request.params.logit_bias)

    def end(self, row: int) -> None:
        """Drop the biases of a request."""
        self._asked.pop(row)

    def applies(self, draws: Draws) -> bool:
        """Return whether some request has a bias."""
        return self._asked.is_asked(draws.row)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Do nothing: biases are the same all along."""

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Add the biases."""
        assert batch.draws is not None
        asked = list(self._asked.found(batch.draws.row))
        pairs = TokenPairs.of(((place, bias.token_ids) for place, bias in asked), self._device)
        logits = logits.float()
        biases = np.concatenate([bias.biases for _, bias in asked])
        logits[pairs.rows, pairs.token_ids] += self._device.place(torch.from_numpy(biases))
        return logits


class ThinkingBudget:
    """Forces the closing tag, token by token, behind the `thinking_budget` tokens of a thought.

    Which tokens a thought has only the host knows: a row is waited for until its thought ends.
    """

    needs_newest_token = True
    can_be_captured = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts = AnswerText(tokenizer)
        # By row and sample, while they last.
        self._thoughts: dict[int, dict[int, ThoughtBudget]] = {}

    def begin(self, request: Request) -> None:
        """Watch the samples of a request that has a budget."""
        self.end(request.index)
        budget = request.params.thinking_budget
        if budget is None:
            return
        budgets: dict[int, ThoughtBudget] = {}
        for sample in range(request.params.n):
            thought = self._texts.thought(request)
            if thought is not None:
                closing = self._texts.closing(request.params)
                budgets[sample] = ThoughtBudget(thought, closing, budget)
        if budgets:
            self._thoughts[request.index] = budgets

    def end(self, row: int) -> None:
        """Forget the request."""
        self._thoughts.pop(row, None)

    def applies(self, draws: Draws) -> bool:
        """Return whether a thought goes on, or may begin."""
        return bool(self._thoughts) and any(
            sample in self._thoughts.get(row, ()) for row, sample in _names(draws.row, draws.sample)
        )

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Follow the thoughts."""
        if not self._thoughts:
            return
        for (row, sample), token in zip(_names(rows, samples), tokens.tolist(), strict=True):
            thoughts = self._thoughts.get(row, {})
            if sample in thoughts and not thoughts[sample].take(token):
                del thoughts[sample]

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Leave a thought without budget one token."""
        draws = batch.draws
        assert draws is not None
        for place, (row, sample) in enumerate(_names(draws.row, draws.sample)):
            thought = self._thoughts.get(row, {}).get(sample)
            if thought is not None and thought.forced is not None:
                logits[place] = -torch.inf
                logits[place, thought.forced] = 0.0
        return logits


def _names(rows: Int64s, samples: Int64s) -> list[tuple[int, int]]:
    return list(zip(rows.tolist(), samples.tolist(), strict=True))


T = TypeVar("T")


class PerRequest(Generic[T]):
    """What each request asks for, by its index; of requests that ask for nothing there is none."""

    def __init__(self) -> None:
        self._by_row: dict[int, T] = {}

    def __setitem__(self, row: int, asked: T) -> None:
        self._by_row[row] = asked

    def __bool__(self) -> bool:
        return bool(self._by_row)

    def pop(self, row: int) -> T | None:
        """Forget what a request asks for; return it, None if it asks for nothing."""
        return self._by_row.pop(row, None)

    def is_asked(self, rows: Int64s) -> bool:
        """Return whether one of these requests, [num_rows] int64, asks for something."""
        return bool(self._by_row) and not self._by_row.keys().isdisjoint(rows.tolist())

    def found(self, rows: Int64s) -> Iterator[tuple[int, T]]:
        """Yield the place in `rows`, [num_rows] int64, of each that asks for something, and it."""
        if not self._by_row:
            return
        for place, row in enumerate(rows.tolist()):
            asked = self._by_row.get(row)
            if asked is not None:
                yield place, asked


V = TypeVar("V")


class LastMade(Generic[V, T]):
    """Makes something of values, not again for the very object that came last.

    What a flag says is one object in all rows, and may be as long as a vocabulary.
    """

    def __init__(self, make: Callable[[V], T]) -> None:
        self._make = make
        self._last: tuple[V, T] | None = None

    def of(self, value: V) -> T:
        """Return what is made of a value, which must not change."""
        if self._last is None or self._last[0] is not value:
            self._last = (value, self._make(value))
        return self._last[1]


class TokenPairs(NamedTuple):
    """rows, token_ids: [num_pairs] int64 on the device, to index logits with both."""

    rows: Tensor
    token_ids: Tensor

    @classmethod
    def of(cls, lists: Iterable[tuple[int, Int64s]], device: Device) -> "TokenPairs":
        """Return the pairs of rows of logits with lists of token ids, one list after the other."""
        rows, token_ids = zip(*lists, strict=True)
        lengths = [len(each) for each in token_ids]
        return cls(
            _placed(np.repeat(np.array(rows, dtype=np.int64), lengths), device),
            _placed(np.concatenate(token_ids), device),
        )


def _placed(array: NDArray[np.int64], device: Device) -> Tensor:
    return device.place(torch.from_numpy(array))
