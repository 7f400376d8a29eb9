"""Windows of texts: distinct ones, the rows that wait for them, and steps. Imports no torch."""

import random
from array import array
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.values.engine_config import Deadline
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.pooling import PooledText
from pagedrun.paged.values.request import Request

PADDED_BATCH = 32  # texts of a padded batch, with which `padded_tokens` compares
Rows = NDArray[np.float32]
_NOTHING: Rows = np.empty(0, np.float32)
_PLACE_BYTES = 256  # of a digest and its place


@dataclass(slots=True, eq=False)
class DistinctText:
    """Text of a window, computed once; `waiting`: rows that use it, once for each use."""

    text: PooledText
    waiting: list["PendingRow"] = field(default_factory=list)
    num_uses: int = 0
    result: Rows | None = None
    error: RowError | None = None

    @property
    def num_tokens(self) -> int:
        """Length of the text."""
        return len(self.text.token_ids)

    @property
    def key(self) -> bytes:
        """Digest that equal texts of all windows have in common."""
        text = self.text
        numbers = array("q", (text.num_first, text.num_skipped, *text.token_ids))
        return blake2b(numbers.tobytes(), digest_size=16).digest()

    def finish(self, result: Rows, error: RowError | None = None) -> None:
        """Set the result, or the error, of the text."""
        self.result, self.error = result, error

    def fail(self, error: RowError) -> None:
        """Set the error of the text."""
        self.finish(_NOTHING, error)

    def release(self) -> None:
        """Free the result after its last use."""
        self.num_uses -= 1
        if not self.num_uses:
            self.result = _NOTHING


@dataclass(slots=True, eq=False)
class PendingRow:
    """Request, its texts in order, and the number of those that are not computed."""

    request: Request
    texts: list[DistinctText] = field(default_factory=list)
    num_missing: int = 0


@dataclass(slots=True, eq=False)
class TextWindow:
    """Requests of a window and their distinct texts, in order of first use.

    `num_padded`: tokens of all texts in batches of `PADDED_BATCH`, sorted by length and padded to
    the longest of each.
    """

    pending: list[PendingRow] = field(default_factory=list)
    distinct: list[DistinctText] = field(default_factory=list)
    num_texts: int = 0
    num_tokens: int = 0
    num_padded: int = 0

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        done: Container[int] = frozenset(),
        deadline: Deadline | None = None,
    ) -> "TextWindow":
        """Return the window of requests, without those that are `done`.

        With a deadline their order is random, so that those computed in time are a fair sample.
        """
        window = cls()
        asked = [each for each in requests if each.index not in done]
        if deadline is not None:
            random.Random(deadline.seed).shuffle(asked)
        known: dict[PooledText, DistinctText] = {}
        for request in asked:
            row = PendingRow(request)
            for text in request.texts:
                key = text._replace(part=0)
                found = known.get(key)
                if found is None:
                    found = known[key] = DistinctText(text)
                    window.distinct.append(found)
                found.num_uses += 1
                found.waiting.append(row)
                row.texts.append(found)
            row.num_missing = len(row.texts)
            window.pending.append(row)
        lengths = [len(text.token_ids) for each in asked for text in each.texts]
        window.num_texts, window.num_tokens = len(lengths), sum(lengths)
        window.num_padded = padded_tokens(lengths)
        return window


class RecentResults:
    """Results of texts of earlier windows, in at most `num_bytes`.

    A text makes room for another when all others were used after it: texts that recur often stay.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._rows = _NOTHING
        self._places: OrderedDict[bytes, int] = OrderedDict()  # least recently used first

    def find(self, texts: Sequence[DistinctText]) -> list[DistinctText]:
        """Finish the texts whose results are here, and return these."""
        found = []
        for each in texts if self._places else ():
            key = each.key
            place = self._places.get(key)
            if place is not None:
                self._places.move_to_end(key)
                each.finish(self._rows[place].copy())
                found.append(each)
        return found

    def keep(self, texts: Sequence[DistinctText]) -> None:
        """Keep the results of computed texts, without those that failed."""
        for each in texts:
            if each.result is None or each.error is not None:
                continue
            if not len(self._rows):
                most = self._num_bytes // (each.result.nbytes + _PLACE_BYTES)
                self._rows = np.empty((max(most, 1), *each.result.shape), each.result.dtype)
            place = len(self._places)
            if place == len(self._rows):
                _, place = self._places.popitem(last=False)
            self._places[each.key] = place
            self._rows[place] = each.result


@dataclass(slots=True)
class TextTotals:
    """Totals of windows: rows, their texts and tokens, and those of distinct texts.

    `longest` is a text, in tokens; `padded` see `TextWindow.num_padded`.
    """

    rows: int = 0
    texts: int = 0
    distinct: int = 0
    tokens: int = 0
    distinct_tokens: int = 0
    longest: int = 0
    padded: int = 0

    def add(self, window: TextWindow) -> None:
        """Count a window."""
        lengths = [each.num_tokens for each in window.distinct]
        self.rows += len(window.pending)
        self.texts += window.num_texts
        self.distinct += len(lengths)
        self.tokens += window.num_tokens
        self.distinct_tokens += sum(lengths)
        self.longest = max(self.longest, *lengths, 0)
        self.padded += window.num_padded

    def remove(self, texts: Sequence[DistinctText]) -> None:
        """Count texts of the last window as those of earlier ones."""
        self.distinct -= len(texts)
        self.distinct_tokens -= sum(each.num_tokens for each in texts)


def padded_tokens(lengths: Sequence[int]) -> int:
    """Return the tokens of padded batches of texts that are sorted by their lengths."""
    ordered = sorted(lengths, reverse=True)
    batches = range(0, len(ordered), PADDED_BATCH)
    return sum(ordered[each] * min(PADDED_BATCH, len(ordered) - each) for each in batches)


def cut_step(texts: Sequence[DistinctText], start: int, most: int) -> Sequence[DistinctText]:
    """Return the texts from one on that make a step of at most `most` tokens, or of one text."""
    end, num_tokens = start + 1, texts[start].num_tokens
    while end < len(texts) and num_tokens + texts[end].num_tokens <= most:
        num_tokens += texts[end].num_tokens
        end += 1
    return texts[start:end]


def count_steps(texts: Sequence[DistinctText], most: int) -> int:
    """Return the number of steps of `cut_step`."""
    start = count = 0
    while start < len(texts):
        start += len(cut_step(texts, start, most))
        count += 1
    return count


def finished_rows(texts: Sequence[DistinctText]) -> Iterator[PendingRow]:
    """Yield the rows whose last texts these are, which have results now."""
    for each in texts:
        waiting, each.waiting = each.waiting, []
        for row in waiting:
            row.num_missing -= 1
            if not row.num_missing:
                yield row
