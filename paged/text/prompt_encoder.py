"""Encoder of prompts: token ids of whole batches, checked against the model's limits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pagedrun.paged.text.prompt import (
    CONTINUATIONS,
    MAX_ENCODED_CHARS,
    Overlong,
    Prompt,
    TextEncoder,
    decode_token_ids,
    encode_texts,
)
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.structure import Structure

ENCODE_BATCH_ROWS = 512
# Texts with more characters a token of the context are encoded in pieces first: a tokenizer may
# take minutes for them.
_LONG_CHARS_PER_TOKEN = 256
_PIECE_CHARS = 2**14  # at least, and `_PIECE_CHARS_PER_TOKEN` for each token of the context
_PIECE_CHARS_PER_TOKEN = 16
# A word that is cut in two may have more tokens: as a whole it may be unknown, and be one.
_MORE_BY_CUT = 256

RefuseStructures = Callable[[Iterable[Structure]], dict[Structure, RowError]]
"""Returns the errors of structures that no answer can have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the model: context in tokens, and number of token ids.

    `on_overlong` applies to prompts too long for the context.
    """

    max_model_len: int
    vocab_size: int
    on_overlong: Overlong = Overlong.ERROR


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Request of a prompt, or the error of an invalid one; None where an earlier run has answered.

    `num_prompt_tokens` are kept, `num_truncated_tokens` dropped from a prompt that is too long.
    `clamped`: `max_tokens` was reduced to the room that the prompt leaves.
    """

    result: Request | RowError | None
    num_prompt_tokens: int = 0
    num_truncated_tokens: int = 0
    clamped: bool = False

    @property
    def request(self) -> Request | None:
        """Request of a valid prompt."""
        return self.result if isinstance(self.result, Request) else None

    @property
    def error(self) -> RowError | None:
        """Error of an invalid prompt."""
        return self.result if isinstance(self.result, RowError) else None


def check_length(
    text: str, what: str, max_tokens: int, encoder: TextEncoder, *, param: str, cuts: bool = False
) -> None:
    """Raise `RowError` for a text that is too long to be encoded, or surely to fit `max_tokens`.

    Its number of characters decides nothing: normalizers drop characters, and a word that the
    vocabulary lacks is one token, however long it is. A long text is encoded in pieces until they
    have far more tokens than fit. what: names the text in the message. cuts: it is cut, so that any
    number of tokens fits.
    """
    if len(text) > MAX_ENCODED_CHARS:
        raise RowError(
            "prompt_too_long",
            f"{what} has {len(text):,} characters, more than the {MAX_ENCODED_CHARS:,} of which "
            "tokens are made",
            param=param,
        )
    if cuts or len(text) <= max_tokens * _LONG_CHARS_PER_TOKEN:
        return
    size, count = max(_PIECE_CHARS, _PIECE_CHARS_PER_TOKEN * max_tokens), 0
    for number, start in enumerate(range(0, len(text), size)):
        [ids] = encoder.encode_batch([text[start : start + size]], add_special_tokens=False)
        count += len(ids)
        if count - (number + 1) * _MORE_BY_CUT > 2 * max_tokens:
            raise RowError(
                "prompt_too_long",
                f"{what} has {len(text):,} characters, of which the first {start + size:,} have "
                f"about {count:,} tokens; the limit is {max_tokens:,}",
                param=param,
            )


class PromptEncoder:
    """Encodes prompts as requests; never raises for their contents."""

    def __init__(
        self, encoder: TextEncoder, limits: Limits, refused: RefuseStructures | None = None
    ) -> None:
        """refused: returns the errors of invalid structures; None to accept all."""
        self._encoder = encoder
        self._limits = limits
        self._refused = refused
        self._bad_words = BadWords(encoder)
        # One integer object for each id: a file's tokens take a quarter of the memory.
        self._token_ids: dict[int, int] = {}

    def encode(
        self, indices: Sequence[int], prompts: Sequence[Prompt | RowError]
    ) -> list[EncodedPrompt]:
        """Return the encoded prompts; `indices` are those of the requests.

        An error in place of a prompt is returned unchanged. Call with about `ENCODE_BATCH_ROWS` at
        a time.
        """
        possible = self._possible([self._short_enough(prompt) for prompt in prompts])
        ids = self._ids(possible)
        return list(map(self._encoded, indices, possible, ids))

    def _short_enough(self, prompt: Prompt | RowError) -> Prompt | RowError:
        """Return the prompt, or an error if its text is far longer than fits."""
        if isinstance(prompt, RowError):
            return prompt
        limits = self._limits
        cuts, most = limits.on_overlong is not Overlong.ERROR, limits.max_model_len
        try:
            for each in prompt.continuations:
                if isinstance(each, str):
                    check_length(each, "a continuation", most, self._encoder, param=CONTINUATIONS)
            if prompt.text is not None:
                check_length(
                    prompt.text, "the prompt", most, self._encoder, param="prompt", cuts=cuts
                )
        except RowError as error:
            return error
        return prompt

    def _possible(self, prompts: Sequence[Prompt | RowError]) -> list[Prompt | RowError]:
        """Return the prompts, with errors in place of those with invalid structures."""
        of_prompts = [None if isinstance(p, RowError) else p.params.structure for p in prompts]
        structures = [each for each in of_prompts if each is not None]
        if self._refused is None or not structures:
            return list(prompts)
        refused = self._refused(structures)
        pairs = zip(prompts, of_prompts, strict=True)
        return [prompt if asked is None else refused.get(asked, prompt) for prompt, asked in pairs]

    def _ids(self, prompts: Sequence[Prompt | RowError]) -> list[tuple[int, ...] | RowError]:
        """Return each prompt's ids, in two calls: with special tokens and without."""
        results: list[tuple[int, ...] | RowError] = [
            prompt if isinstance(prompt, RowError) else prompt.token_ids or () for prompt in prompts
        ]
        for special in (True, False):
            texts = {
                index: prompt.text
                for index, prompt in enumerate(prompts)
                if isinstance(prompt, Prompt)
                and prompt.text is not None
                and prompt.add_special_tokens is special
            }
            if texts:
                encoded = self._encode_texts(list(texts.values()), special)
                for index, ids in zip(texts, encoded, strict=True):
                    results[index] = ids
        return results

    def _encode_texts(self, texts: list[str], special: bool) -> list[tuple[int, ...] | RowError]:
        try:
            encoded = self._encoder.encode_batch(texts, add_special_tokens=special)
        except RowError as error:
            if len(texts) == 1:
                return [error]
            # One invalid text fails the whole call: encode each alone to find it.
            return [self._encode_texts([text], special)[0] for text in texts]
        known = self._token_ids.setdefault
        return [tuple(map(known, ids, ids)) for ids in encoded]

    def _encoded(
        self, index: int, prompt: Prompt | RowError, ids: tuple[int, ...] | RowError
    ) -> EncodedPrompt:
        if isinstance(prompt, RowError):
            return EncodedPrompt(prompt)
        if isinstance(ids, RowError):
            return EncodedPrompt(ids)
        try:
            request = self._request(index, prompt, ids)
        except RowError as error:
            return EncodedPrompt(error, len(ids))
        num_kept = len(request.prompt_token_ids)
        num_cut = len(ids) - num_kept
        try:
            fitted = request.fitted(self._limits.max_model_len, self._limits.vocab_size)
        except RowError as error:
            return EncodedPrompt(error, num_kept, num_cut)
        return EncodedPrompt(fitted, num_kept, num_cut, clamped=fitted is not request)

    def _request(self, index: int, prompt: Prompt, ids: tuple[int, ...]) -> Request:
        """Return the request, its prompt cut if `on_overlong` says so; raises `RowError`."""
        params, limits = prompt.params, self._limits
        if not prompt.continuations:
            kept = limits.on_overlong.cut(ids, limits.max_model_len, params.max_tokens)
            bad_words = self._bad_words.token_ids(params.bad_words)
            return Request(index, kept, params, bad_words, priority=prompt.priority)
        continuations = self._continuations(prompt, len(ids))
        behind = max(len(each.token_ids) for each in continuations) - 1  # the last is never read
        kept = limits.on_overlong.cut(ids, limits.max_model_len, behind, behind)
        scoring = Request.scoring(index, kept, continuations, params.prompt_logprobs)
        return replace(scoring, priority=prompt.priority)

    def _continuations(self, prompt: Prompt, num_prompt_tokens: int) -> tuple[Continuation, ...]:
        texts = [each for each in prompt.continuations if isinstance(each, str)]
        token_ids = [each for each in prompt.continuations if not isinstance(each, str)]
        if token_ids:
            return decode_token_ids(token_ids, self._encoder, self._limits.vocab_size)
        return encode_texts(
            texts,
            self._encoder,
            prompt=prompt.text,
            space=prompt.space,
            add_special_tokens=prompt.add_special_tokens,
            num_prompt_tokens=num_prompt_tokens,
        )


MAX_KEPT = 256  # cached lists of words: most rows of a file have the same one
_NAME = "bad_words"


class BadWords:
    """Encoder of `bad_words`, as in vLLM."""

    def __init__(self, tokenizer: TextEncoder) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

    def token_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the ids of each word at the start of a text, and within one where these differ.

        The ids after a space are used if they have the same length and another first token: else
        the last token would be forbidden after a part of another word. Raises `RowError` for a word
        without tokens.
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
