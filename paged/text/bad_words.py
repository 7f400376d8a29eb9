"""BadWords: words that no answer may have, as the token ids that would write them."""

from typing import Protocol

from pagedrun.paged.values.errors import RowError

MAX_KEPT = 256  # lists of words whose ids are remembered: most rows of a file have the same one
_NAME = "bad_words"


class _Encoder(Protocol):
    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]: ...


class BadWords:
    """Encodes lists of words, as vLLM does."""

    def __init__(self, tokenizer: _Encoder) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

    def token_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the ids of each word as it begins a text, and within one where that differs.

        Behind a space a word counts if it has as many tokens and the first is another: else its
        last token would be forbidden where a part of another word came before. Raises `RowError`
        for a word that the tokenizer makes nothing of.
        """
        if not words:
            return ()
        if words not in self._known:
            if len(self._known) == MAX_KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[words] = self._encoded(words)
        return self._known[words]

    def _encoded(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        bare = [word.lstrip() for word in words]
        try:
            encoded = self._tokenizer.encode_batch(
                [*bare, *(f" {word}" for word in bare)], add_special_tokens=False
            )
        except RowError as error:
            raise RowError(error.code, error.marked, param=_NAME) from error
        found: list[tuple[int, ...]] = []
        for first, within in zip(encoded[: len(bare)], encoded[len(bare) :], strict=True):
            if not first:
                raise RowError(
                    "invalid_param", f"{_NAME} contains a word without tokens", param=_NAME
                )
            found.append(tuple(first))
            if len(within) == len(first) and within[0] != first[0]:
                found.append(tuple(within))
        return tuple(found)
