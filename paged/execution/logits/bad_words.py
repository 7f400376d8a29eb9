"""BadWordsFilter: the processor of logits that keeps `bad_words` out of answers."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.asked import Asked
from pagedrun.paged.execution.logits.last_made import LastMade
from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.execution.logits.token_pairs import TokenPairs
from pagedrun.paged.execution.logits.word_tree import WordTree
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


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
        self._asked: Asked[_Words] = Asked()
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
