"""Texts of a task as token ids: with prompts and special tokens, cut, or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.text.prompt import Overlong, require_unicode
from pagedrun.paged.text.prompt_encoder import EncodedPrompt, check_length
from pagedrun.paged.text.tokenizer import EncodedText, Tokenizer
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.pooling import PairOrder, PooledText, PoolingParams
from pagedrun.paged.values.request import Request

RERANK_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
RERANK_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

Given = str | tuple[str, str] | tuple[int, ...]
"""A text, a pair of texts, or token ids."""


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Longest text in tokens, number of token ids, and treatment of longer texts.

    in_chunks: they are cut into several texts, whatever `on_overlong` is.
    """

    max_length: int
    vocab_size: int
    on_overlong: Overlong = Overlong.ERROR
    in_chunks: bool = False


class PooledTextEncoder:
    """Encodes the texts of rows as requests; never raises for their contents.

    `has_types`: the model has a second token type, for the second text of a pair.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        spec: PooledModelSpec,
        limits: TextLimits,
    ) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        self._limits = limits
        self._known: dict[int, int] = {}  # one integer object for each id
        types = getattr(spec.config.network.embedding, "types", None)
        self._has_types = types is not None and types.shape[0] > 1
        self._around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        if spec.has_prompt_of_pairs:
            before, after = tokenizer.encode_batch([RERANK_PREFIX, RERANK_SUFFIX], False)
            self._around = tuple(before), tuple(after)
        around = max(tokenizer.num_special_tokens(of_pair=each) for each in (False, True))
        self._most = limits.max_length - sum(map(len, self._around))
        self._may_cut = limits.in_chunks or limits.on_overlong is not Overlong.ERROR
        self._cuts = self._may_cut and self._most > around

    def requests(
        self, indices: Sequence[int], rows: Sequence[Sequence[Given] | RowError]
    ) -> list[EncodedPrompt]:
        """Return the encoded rows; an error in place of texts is kept."""
        flat: list[tuple[int, int, Given]] = []  # row, part, text
        num_parts: dict[int, int] = {}
        results: list[EncodedPrompt | RowError | None] = [None] * len(rows)
        for number, row in enumerate(rows):
            if isinstance(row, RowError):
                results[number] = row
                continue
            short: list[Given] = []
            try:
                for each in row:
                    short.append(self._checked(each))
            except RowError as error:
                results[number] = _of_part(error, len(short), len(row))
                continue
            flat += [(number, part, each) for part, each in enumerate(short)]
            num_parts[number] = len(short)
        encoded = self._encoded([each for _, _, each in flat])
        texts: dict[int, list[PooledText]] = {}
        num_cut: dict[int, int] = {}
        for (number, part, _), pieces in zip(flat, encoded, strict=True):
            if isinstance(pieces, RowError):
                results[number] = results[number] or _of_part(pieces, part, num_parts[number])
                continue
            own = texts.setdefault(number, [])
            own += [piece._replace(part=part) for piece in pieces.texts]
            num_cut[number] = num_cut.get(number, 0) + pieces.num_cut
        return [
            self._request(index, results[number], texts.get(number, []), num_cut.get(number, 0))
            for number, index in enumerate(indices)
        ]

    def _request(
        self,
        index: int,
        result: EncodedPrompt | RowError | None,
        texts: list[PooledText],
        num_cut: int,
    ) -> EncodedPrompt:
        if isinstance(result, RowError):
            return EncodedPrompt(result)
        count = sum(len(each.token_ids) for each in texts)
        return EncodedPrompt(Request.pooling(index, tuple(texts)), count, num_cut)

    def _checked(self, given: Given) -> Given:
        """Return a text as it is encoded: with the prompt; `RowError` if it is far too long."""
        if isinstance(given, tuple) and not isinstance(given[0], str):
            return given
        texts = (given,) if isinstance(given, str) else given
        ready = []
        for each in texts:
            assert isinstance(each, str)
            require_unicode(each)
            text = each.lower() if self._spec.lowers_case else each
            most = self._limits.max_length
            check_length(text, "the text", most, self._tokenizer, param="text", cuts=self._may_cut)
            ready.append(text)
        if len(ready) == 1:
            return self._spec.prompt + ready[0]
        return ready[0], ready[1]

    def _encoded(self, texts: list[Given]) -> "list[_Pieces | RowError]":
        """Return the tokens of each text, in one call of the tokenizer."""
        plain: list[str | tuple[str, str]] = []
        for each in texts:
            if isinstance(each, str) or (each and isinstance(each[0], str)):
                plain.append(each)
        special = not self._spec.has_prompt_of_pairs
        found = iter(self._ids(plain, special))
        results: list[_Pieces | RowError] = []
        for each in texts:
            try:
                if isinstance(each, str) or isinstance(each[0], str):
                    results.append(self._pieces(each, next(found)))
                else:
                    results.append(self._given_ids(each))
            except RowError as error:
                results.append(error)
        return results

    def _ids(self, texts: list[str | tuple[str, str]], special: bool) -> list[EncodedText]:
        """Return the tokens of texts, in pieces of what fits if they may be cut.

        None of a text that the tokenizer fails on.
        """
        limits = self._limits
        is_left = limits.on_overlong is Overlong.TRUNCATE_LEFT and not limits.in_chunks
        try:
            return self._tokenizer.encode_pairs(
                texts,
                add_special_tokens=special,
                max_tokens=self._most if self._cuts else None,
                side="left" if is_left else "right",
            )
        except RowError:
            if len(texts) == 1:
                return [EncodedText([], 0, [])]
            return [self._ids([text], special)[0] for text in texts]

    def _pieces(self, text: "str | tuple[str, str]", encoded: EncodedText) -> "_Pieces":
        """Return the pieces of a text: one, or its chunks."""
        before, after = self._around
        ids, num_first, rest = encoded
        if not ids:
            raise RowError("empty_prompt", "the text has no tokens", param="text")
        self._require_known(ids, *rest)
        if not rest and len(ids) <= self._most:
            return _Pieces((self._text((*before, *ids, *after), num_first),))
        if self._limits.in_chunks and isinstance(text, str) and self._cuts:
            return _Pieces(tuple(self._text(each, len(each)) for each in (ids, *rest)))
        if self._limits.on_overlong is not Overlong.ERROR and not self._cuts:
            raise RowError(
                "prompt_too_long",
                f"a limit of {self._limits.max_length} tokens leaves no room for a text between "
                "the special tokens and prompts around it",
                param="text",
            )
        length = self._length(text, encoded)
        if self._limits.on_overlong is Overlong.ERROR:
            raise RowError(
                "prompt_too_long",
                f"the text has {length + len(before) + len(after)} tokens, but the limit is "
                f"{self._limits.max_length}; {option('on_overlong')} truncate-right cuts it",
                param="text",
            )
        kept = self._text((*before, *ids, *after), num_first)
        return _Pieces((kept,), length - len(ids))

    def _require_known(self, *pieces: Sequence[int]) -> None:
        """Raise `RowError` for a token that the model has no vector for."""
        size = self._limits.vocab_size
        if self._tokenizer.num_ids > size and max(map(max, pieces)) >= size:
            raise RowError(
                "token_id_out_of_range",
                f"the text has a token whose id is outside the model's vocabulary, 0 to {size - 1}",
                param="text",
            )

    def _length(self, text: "str | tuple[str, str]", encoded: EncodedText) -> int:
        """Return the number of tokens of a text that is not cut."""
        special = not self._spec.has_prompt_of_pairs
        if isinstance(text, str):
            around = self._tokenizer.num_special_tokens(of_pair=False) if special else 0
            return len(encoded.ids) + sum(len(each) - around for each in encoded.rest)
        # Pieces of a pair are pairs of pieces.
        [whole] = self._tokenizer.encode_pairs([text], add_special_tokens=special)
        return len(whole.ids)

    def _text(self, ids: Sequence[int], num_first: int) -> PooledText:
        known = self._known.setdefault
        token_ids = tuple(map(known, ids, ids))
        return PooledText(token_ids, num_first if self._has_types else len(token_ids), 0)

    def _given_ids(self, ids: tuple[int, ...]) -> "_Pieces":
        limit, size = self._limits.max_length, self._limits.vocab_size
        if min(ids) < 0 or max(ids) >= size:
            raise RowError(
                "token_id_out_of_range",
                f"prompt_token_ids has an id outside the model's vocabulary, 0 to {size - 1}",
                param="prompt_token_ids",
            )
        mode = self._limits.on_overlong
        if len(ids) > limit and mode is Overlong.ERROR:
            raise RowError(
                "prompt_too_long",
                f"the text has {len(ids)} tokens, but the limit is {limit}",
                param="prompt_token_ids",
            )
        kept = ids[-limit:] if mode is Overlong.TRUNCATE_LEFT else ids[:limit]
        return _Pieces((self._text(kept, len(kept)),), len(ids) - len(kept))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Encoded pieces of a text, and the tokens that were cut."""

    texts: tuple[PooledText, ...]
    num_cut: int = 0


def _of_part(error: RowError, part: int, num_parts: int) -> RowError:
    """Return the error of a text, with its index among several of a row."""
    if num_parts == 1:
        return error
    return RowError(error.code, f"at index {part}: {error.marked}", param=error.param)


def pair_texts(
    query: str, documents: Sequence[str], spec: PooledModelSpec, params: PoolingParams
) -> list[Given]:
    """Return a query with each document, as the model reads them: pairs, or texts of a prompt."""
    if not spec.has_prompt_of_pairs:
        return [(query, each) for each in documents]
    about = f"<Instruct>: {params.instruction}\n"
    if params.pair_order is PairOrder.DOCUMENT:
        return [f"{about}<Document>: {each}\n<Query>: {query}" for each in documents]
    return [f"{about}<Query>: {query}\n<Document>: {each}" for each in documents]
