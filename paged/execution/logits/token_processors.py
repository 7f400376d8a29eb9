"""Logits processors that forbid, force or bias single tokens.

Allowed tokens, bad words, minimum lengths, logit biases and thinking budgets, with the tables
that they share: lists of (row, token) pairs and a trie of forbidden words. Parameters of a flag
are one object in all rows and may be as long as a vocabulary: `LastConverted` converts them once.
"""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Float32s, Int64s
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.logits_processor import (
    LogitsProcessor,
    PerRequestProcessor,
    SamplingBatch,
)
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.reasoning import ReasoningBudget
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import Request


class AllowedTokens(PerRequestProcessor[Int64s]):
    """Masks all tokens but `allowed_token_ids`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._ids: LastConverted[tuple[int, ...], Int64s] = LastConverted(_array)

    def requested(self, request: Request) -> Int64s | None:
        """Return the allowed ids, None if all are."""
        ids = request.params.allowed_token_ids
        return None if ids is None else self._ids.of(ids)

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Write minus infinity to tokens that are not allowed."""
        assert batch.draws is not None
        found = list(self.found(batch.draws.row))
        pairs = TokenPairs.of(found, self._device)
        allowed = logits[pairs.rows, pairs.token_ids]
        rows = self._device.place(torch.tensor([row for row, _ in found]))
        logits.index_fill_(0, rows, -torch.inf)
        logits[pairs.rows, pairs.token_ids] = allowed
        return logits


def _array(token_ids: Iterable[int]) -> Int64s:
    return np.array(list(token_ids), dtype=np.int64)


class WordTree:
    """Node of a trie of words. `last`: tokens that complete a word; `following`: child nodes."""

    __slots__ = ("following", "last")

    def __init__(self, words: Iterable[tuple[int, ...]] = ()) -> None:
        """Build the root of a trie of these words, none of them empty."""
        self.last: set[int] = set()
        self.following: dict[int, WordTree] = {}
        for word in words:
            node = self
            for token in word[:-1]:
                node = node.following.setdefault(token, WordTree())
            node.last.add(word[-1])


class _Words:
    """Forbidden words of a request, and the progress of each sample in them.

    `begun`: by sample, the trie nodes that suffixes of its answer lead to from the root.
    """

    def __init__(self, tree: WordTree) -> None:
        self.tree = tree
        self.always = _array(sorted(self.tree.last))  # words of one token
        self.begun: dict[int, list[WordTree]] = {}

    def note(self, sample: int, token: int) -> None:
        nodes = (*self.begun.get(sample, ()), self.tree)
        self.begun[sample] = [node.following[token] for node in nodes if token in node.following]

    def forbidden(self, sample: int) -> Int64s:
        """Return the tokens that would complete a word, [num_tokens] int64."""
        nodes = self.begun.get(sample)
        if not nodes:
            return self.always
        return _array(sorted(self.tree.last.union(*(node.last for node in nodes))))


class BadWordsFilter(PerRequestProcessor[_Words]):
    """Masks the last token of a forbidden word where its other tokens end the answer so far."""

    needs_newest_token = True

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._trees: LastConverted[tuple[tuple[int, ...], ...], WordTree] = LastConverted(WordTree)

    def requested(self, request: Request) -> _Words | None:
        """Return the forbidden words, None without."""
        assert bool(request.params.bad_words) == bool(request.bad_words_ids), "words without ids"
        ids = request.bad_words_ids
        return _Words(self._trees.of(ids)) if ids else None

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Advance the samples in their words."""
        for index, words in self.found(rows):
            words.note(int(samples[index]), int(tokens[index]))

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Write minus infinity to tokens that would complete a word."""
        assert batch.draws is not None
        samples = batch.draws.sample
        forbidden = (
            (index, words.forbidden(int(samples[index])))
            for index, words in self.found(batch.draws.row)
        )
        pairs = TokenPairs.of(forbidden, self._device)
        logits[pairs.rows, pairs.token_ids] = -torch.inf
        return logits


class MinTokens(LogitsProcessor):
    """Masks the stop tokens of answers below `min_tokens`."""

    can_be_captured = True

    def applies(self, draws: SamplingMetadata) -> bool:
        """Return whether an answer is too short."""
        return bool(draws.stop_token_ids)

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Return logits with the stop tokens of short answers masked."""
        return logits if batch.early_stops is None else batch.early_stops.forbidden(logits)


class _Bias(NamedTuple):
    """token_ids: [num_ids] int64, distinct. biases: [num_ids] float32."""

    token_ids: Int64s
    biases: Float32s

    @classmethod
    def of(cls, pairs: tuple[tuple[int, float], ...]) -> "_Bias":
        token_ids, biases = zip(*pairs, strict=True)
        return cls(np.array(token_ids, dtype=np.int64), np.array(biases, dtype=np.float32))


class LogitBias(PerRequestProcessor[_Bias]):
    """Adds `logit_bias` to the logits."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._biases: LastConverted[tuple[tuple[int, float], ...], _Bias] = LastConverted(_Bias.of)

    def requested(self, request: Request) -> _Bias | None:
        """Return the biases, None without."""
        bias = request.params.logit_bias
        return self._biases.of(bias) if bias else None

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Add the biases."""
        assert batch.draws is not None
        found = list(self.found(batch.draws.row))
        pairs = TokenPairs.of(((index, bias.token_ids) for index, bias in found), self._device)
        logits = logits.float()
        biases = np.concatenate([bias.biases for _, bias in found])
        logits[pairs.rows, pairs.token_ids] += self._device.place(torch.from_numpy(biases))
        return logits


class ThinkingBudget(LogitsProcessor):
    """Forces the closing tag, token by token, after the `thinking_budget` tokens of a thought.

    Only the host can follow a thought, so that a row needs its newest token until the thought ends.
    """

    needs_newest_token = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts = AnswerText(tokenizer)
        # By row and sample, until the thought ends.
        self._thoughts: dict[int, dict[int, ReasoningBudget]] = {}

    def begin(self, request: Request) -> None:
        """Add the samples of a request with a budget."""
        self.end(request.index)
        budget = request.params.thinking_budget
        if budget is None:
            return
        budgets: dict[int, ReasoningBudget] = {}
        for sample in range(request.params.n):
            thought = self._texts.thought(request)
            if thought is not None:
                closing = self._texts.closing(request.params)
                budgets[sample] = ReasoningBudget(thought, closing, budget)
        if budgets:
            self._thoughts[request.index] = budgets

    def end(self, row: int) -> None:
        """Remove a request."""
        self._thoughts.pop(row, None)

    def applies(self, draws: SamplingMetadata) -> bool:
        """Return whether a thought continues, or may begin."""
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
        """Allow a thought without budget one token only."""
        draws = batch.draws
        assert draws is not None
        for index, (row, sample) in enumerate(_names(draws.row, draws.sample)):
            thought = self._thoughts.get(row, {}).get(sample)
            if thought is not None and thought.forced is not None:
                logits[index] = -torch.inf
                logits[index, thought.forced] = 0.0
        return logits


def _names(rows: Int64s, samples: Int64s) -> list[tuple[int, int]]:
    return list(zip(rows.tolist(), samples.tolist(), strict=True))


T = TypeVar("T")
V = TypeVar("V")


class LastConverted(Generic[V, T]):
    """Function with a cache of its last argument, compared by identity."""

    def __init__(self, convert: Callable[[V], T]) -> None:
        self._convert = convert
        self._last: tuple[V, T] | None = None

    def of(self, value: V) -> T:
        """Return the converted value, which must not be changed."""
        if self._last is None or self._last[0] is not value:
            self._last = (value, self._convert(value))
        return self._last[1]


class TokenPairs(NamedTuple):
    """Indices of logits: rows, token_ids, [num_pairs] int64 each, on the device."""

    rows: Tensor
    token_ids: Tensor

    @classmethod
    def of(cls, lists: Iterable[tuple[int, Int64s]], device: Device) -> "TokenPairs":
        """Return the pairs of each row of logits with its list of token ids."""
        rows, token_ids = zip(*lists, strict=True)
        lengths = [len(each) for each in token_ids]
        return cls(
            _placed(np.repeat(np.array(rows, dtype=np.int64), lengths), device),
            _placed(np.concatenate(token_ids), device),
        )


def _placed(array: Int64s, device: Device) -> Tensor:
    return device.place(torch.from_numpy(array))
